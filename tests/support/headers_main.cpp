// An empty program that carries the precompiled headers that tests share (cmake/FsdpTest.cmake).
