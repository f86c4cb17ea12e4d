"""text/src/panics.rs in a Rust host: an app that has Rust of its own, with its own panic hook."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from streamfuse.native.cargo import need_cargo

MODULE = Path(__file__).parents[2] / "text" / "src" / "panics.rs"
HOST = """
#[path = "MODULE"]
mod panics;

use std::panic::{catch_unwind, set_hook};
use std::thread;

struct Calls; // calls the library while a panic of the host unwinds
impl Drop for Calls {
    fn drop(&mut self) {
        println!("{:?}", panics::caught(|| 7));
    }
}

fn main() {
    set_hook(Box::new(|panic| eprintln!("host: {panic}")));
    let _ = catch_unwind(|| {
        let _calls = Calls;
        panic!("before")
    });
    println!("{:?}", panics::caught(|| -> u32 { panic!("a {} of the library", "fault") }));
    println!("{:?}", panics::caught(|| panics::caught(|| -> u32 { panic!("inner") }).is_err()));
    println!("{:?}", panics::caught(|| -> u32 { std::panic::panic_any(3) }));
    println!("{:?}", panics::caught(|| thread::spawn(|| -> u32 { panic!("a thread of the host") }).join().is_err()));
    let _ = catch_unwind(|| panic!("after"));
    println!("{:?}", panics::caught(|| 8));
    set_hook(Box::new(|_| ()));
    println!("{:?}", panics::caught(|| -> u32 { panic!("under another hook") }));
}
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    folder = tmp_path_factory.mktemp("host")
    (folder / "host.rs").write_text(HOST.replace("MODULE", str(MODULE)))
    environment = os.environ | need_cargo()[1]
    subprocess.run(["rustc", "--edition", "2021", "host.rs"], cwd=folder, env=environment, check=True)
    return subprocess.run([folder / "host"], capture_output=True, text=True, check=True)


def test_a_panic_of_the_library_is_an_error_with_its_message_and_location(
    host: subprocess.CompletedProcess[str],
) -> None:
    lines = host.stdout.splitlines()
    assert lines[0] == "Ok(7)"
    assert lines[1].startswith('Err("host.rs:')
    assert lines[1].endswith(': a fault of the library")')
    assert lines[2] == "Ok(true)"
    assert lines[3].startswith('Err("host.rs:')
    assert lines[3].endswith(': no reason was given")')
    assert lines[4:6] == ["Ok(true)", "Ok(8)"]
    assert lines[6] == 'Err("under another hook")'


def test_panics_of_other_code_keep_the_hook_of_the_host(host: subprocess.CompletedProcess[str]) -> None:
    panics = [line for line in host.stderr.splitlines() if not line.startswith("host: ")]
    assert panics == ["before", "a thread of the host", "after"]
    assert host.stderr.count("host: panicked at host.rs:") == 3
