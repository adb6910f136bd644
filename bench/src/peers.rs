//! Builds the programs of peers.

use std::path::{Path, PathBuf};
use std::process::Command;

use bench_kit::BoxError;

/// Builds the program of a peer by itself, and says where it is.
///
/// By itself, since cargo unites the features of all that it builds together. The peers have a lock
/// file of their own, which is adhered to.
pub(crate) fn build(package: &str) -> Result<PathBuf, BoxError> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
    let manifest = folder.join("Cargo.toml");
    let target = target_folder()?.join("peers");
    eprintln!("building {package}, which takes minutes the first time");
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--release", "--locked", "--quiet", "--package", package])
        .arg("--manifest-path")
        .arg(&manifest)
        .arg("--target-dir")
        .arg(&target)
        .current_dir(&folder)
        .status()?;
    if !status.success() {
        return Err(format!("{package} cannot be built: cargo ended with {status}").into());
    }
    Ok(target.join("release").join(package))
}

/// Where cargo put this program, without the folder of the profile.
fn target_folder() -> Result<PathBuf, BoxError> {
    let program = std::env::current_exe()?;
    let folder = program.ancestors().nth(2).ok_or("this program is in no target folder")?;
    Ok(folder.to_owned())
}
