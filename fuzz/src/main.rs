//! The fuzzer of the target that the variable `FUZZ_TARGET` names; `run.sh` builds and starts it.
//!
//! Built without `--cfg fuzzing`, it replays files instead: `fuzz <target> <file or folder>...`. That
//! is how an input is looked at in a debugger, and how coverage by source file is measured.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
mod libfuzzer {
    #![allow(unsafe_code, reason = "libFuzzer finds the target by an unmangled name")]

    use std::sync::LazyLock;

    use fuzz::Target;

    static TARGET: LazyLock<Target> = LazyLock::new(|| {
        let name = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET is set");
        Target::named(&name).expect("FUZZ_TARGET names a target")
    });

    libfuzzer_sys::fuzz_target!(init: LazyLock::force(&TARGET), |data: &[u8]| TARGET.run(data));
}

#[cfg(not(fuzzing))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use std::{fs, path::PathBuf};

    let mut arguments = std::env::args().skip(1);
    let names: Vec<_> = fuzz::Target::ALL.iter().map(|target| target.name).collect();
    let usage = || format!("usage: fuzz <target> <file or folder>..., with a target of {}", names.join(", "));
    let target = arguments.next().as_deref().and_then(fuzz::Target::named).ok_or_else(usage)?;
    let mut paths: Vec<PathBuf> = arguments.map(PathBuf::from).collect();
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            for entry in fs::read_dir(path)? {
                paths.push(entry?.path());
            }
        } else {
            target.run(&fs::read(path)?);
        }
    }
    Ok(())
}
