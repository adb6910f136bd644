//! The service by hand: its messages derive `prost::Message`, so that no `protoc` is needed.

fn main() {
    let method = tonic_build::manual::Method::builder()
        .name("echo")
        .route_name("Echo")
        .input_type("crate::Message")
        .output_type("crate::Message")
        .codec_path("tonic_prost::ProstCodec")
        .build();
    let items = tonic_build::manual::Method::builder()
        .name("items")
        .route_name("Items")
        .input_type("crate::Message")
        .output_type("crate::Item")
        .codec_path("tonic_prost::ProstCodec")
        .server_streaming()
        .build();
    let service = tonic_build::manual::Service::builder().name("Echo").package("bench").method(method).method(items).build();
    let work = tonic_build::manual::Method::builder()
        .name("work")
        .route_name("Work")
        .input_type("crate::overload::Call")
        .output_type("crate::overload::Call")
        .codec_path("tonic_prost::ProstCodec")
        .build();
    let desk = tonic_build::manual::Service::builder().name("Desk").package("bench").method(work).build();
    tonic_build::manual::Builder::new().compile(&[service, desk]);
}
