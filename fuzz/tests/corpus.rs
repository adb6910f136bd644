//! Every input that a fuzzer found worth keeping still holds.

use std::{fs, path::Path};

use fuzz::Target;

#[test]
fn every_target_holds_for_its_corpus() {
    for &target in Target::ALL {
        let mut inputs = 0;
        for entry in fs::read_dir(target.corpus()).expect("every target has a corpus") {
            let path = entry.expect("the folder can be read").path();
            let data = fs::read(&path).expect("the file can be read");
            // Panics name the input.
            let guard = Input(&path);
            target.run(&data);
            drop(guard);
            inputs += 1;
        }
        assert!(inputs > 0, "{} has no corpus", target.name);
    }
}

#[test]
fn every_target_holds_for_nothing_and_for_plain_bytes() {
    for target in Target::ALL {
        target.run(&[]);
        for byte in 0..=u8::MAX {
            target.run(&[byte; 1]);
            target.run(&[byte; 100]);
        }
    }
}

/// Says which input it was when the test panics.
struct Input<'a>(&'a Path);

impl Drop for Input<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the input is {}", self.0.display());
        }
    }
}
