# Each target calls the script that does the work.
.PHONY: build setup demo test test-mpi differential sanitize bench dist install format lint clean
PREFIX ?= /usr/local
BUILD ?= build

build:    ; @scripts/setup && scripts/build
setup:    ; @scripts/setup
demo:     ; @scripts/demo
test:     ; @scripts/test
test-mpi: ; @scripts/test -L mpi
differential: ; @scripts/differential
sanitize: ; @scripts/sanitize
bench:    ; @scripts/setup --full && scripts/build --with-tests && ctest --test-dir $(BUILD) -L '^bench$$' -V
dist:     ; @scripts/setup && scripts/dist
install:  ; @scripts/setup && scripts/build && cmake --install $(BUILD) --prefix '$(PREFIX)'
format:   ; @scripts/format
lint:     ; @scripts/lint
clean:    ; @cmake --build $(BUILD) --target clean
