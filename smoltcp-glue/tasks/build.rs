//! Generates the client and the server of the gRPC service without a `.proto` file.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    let method = |name: &str, route: &str| {
        Method::builder()
            .name(name)
            .route_name(route)
            .input_type("crate::Text")
            .output_type("crate::Text")
            .codec_path("tonic_prost::ProstCodec")
    };
    let service = Service::builder()
        .package("example")
        .name("Words")
        .method(method("upper", "Upper").build())
        .method(method("split", "Split").server_streaming().build())
        .build();
    Builder::new().compile(&[service]);
}
