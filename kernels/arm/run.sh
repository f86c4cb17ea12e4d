#!/bin/sh
# Runs a program for 64-bit ARM Linux on this machine: run.sh PROGRAM [ARGUMENT...].
# QEMU_CPU names the processor: max (all extensions, the default), cortex-a53 (plain NEON), neoverse-n1 (with dot product).
export QEMU_CPU="${QEMU_CPU:-max}"
export QEMU_LD_PREFIX="${QEMU_LD_PREFIX:-/usr/aarch64-linux-gnu}"
exec qemu-aarch64-static "$@"
