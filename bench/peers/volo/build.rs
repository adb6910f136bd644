//! volo's own generator reads Thrift; no other compiler is needed.

fn main() {
    println!("cargo::rerun-if-changed=idl/echo.thrift");
    volo_build::Builder::thrift().add_service("idl/echo.thrift").write().expect("the IDL is valid");
}
