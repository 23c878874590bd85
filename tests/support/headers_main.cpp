// Nothing but a precompiled header that tests share (cmake/FsdpTest.cmake).
