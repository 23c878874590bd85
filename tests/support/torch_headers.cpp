// Nothing but the precompiled header that the tests on LibTorch share (cmake/FsdpTest.cmake).
