//! gRPC by tonic: calls with one response, and with a stream of responses.
//!
//! ```sh
//! cargo run --release -p pollux-tasks --bin grpc
//! ```
#![forbid(unsafe_code)]

use generated::words_client::WordsClient;
use generated::words_server::{Words, WordsServer};
use hyper_util::rt::TokioIo;
use pollux::pinned::{TcpListener, TcpStream};
use pollux_tasks::up;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_stream::{Stream, StreamExt, iter};
use tonic::transport::server::Connected;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};

mod generated {
    #![allow(unused_qualifications, clippy::pedantic, reason = "tonic-build has written it")]
    include!(concat!(env!("OUT_DIR"), "/example.Words.rs"));
}

const CALLS: usize = 1000;
const WORDS: usize = 10_000;

/// The message of all requests and responses.
#[derive(Clone, PartialEq, prost::Message)]
struct Text {
    #[prost(string, tag = "1")]
    text: String,
}

struct Service;

#[tonic::async_trait]
impl Words for Service {
    async fn upper(&self, request: Request<Text>) -> Result<Response<Text>, Status> {
        let text = request.into_inner().text.to_uppercase();
        Ok(Response::new(Text { text }))
    }

    type SplitStream = Pin<Box<dyn Stream<Item = Result<Text, Status>> + Send>>;

    async fn split(&self, request: Request<Text>) -> Result<Response<Self::SplitStream>, Status> {
        let words: Vec<_> = request.into_inner().text.split(' ').map(str::to_owned).collect();
        let words = iter(words).map(|text| Ok(Text { text }));
        Ok(Response::new(Box::pin(words)))
    }
}

/// A stream for tonic's server, which requires the trait [`Connected`].
struct Accepted(TcpStream);

impl Connected for Accepted {
    type ConnectInfo = Option<SocketAddr>;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.0.peer_addr().ok()
    }
}

impl AsyncRead for Accepted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        AsyncRead::poll_read(Pin::new(&mut self.0), context, buffer)
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.0), context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_flush(Pin::new(&mut self.0), context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_shutdown(Pin::new(&mut self.0), context)
    }
}

async fn accept(listener: TcpListener) -> Option<(io::Result<Accepted>, TcpListener)> {
    let accepted = listener.accept_async().await;
    Some((accepted.map(|(stream, _)| Accepted(stream)), listener))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let at = SocketAddr::from(([10, 0, 0, 1], 50051));
    let (host, client) = (up("10.0.0.1/24").await?, up("10.0.0.2/24").await?);
    let incoming = futures_util::stream::unfold(host.tcp_listen(at, 128)?, accept);
    let serving = Server::builder().add_service(WordsServer::new(Service));
    tokio::spawn(serving.serve_with_incoming(incoming));

    let connect = tower::service_fn(move |_| {
        let client = client.clone();
        async move { client.tcp_connect_async(at).await.map(TokioIo::new) }
    });
    let server = Endpoint::from_static("http://10.0.0.1:50051");
    let mut words = WordsClient::new(server.connect_with_connector(connect).await?);
    for number in 0..CALLS {
        let response = words.upper(Text { text: format!("call {number}") }).await?;
        assert_eq!(response.into_inner().text, format!("CALL {number}"));
    }
    let text: Vec<_> = (0..WORDS).map(|number| number.to_string()).collect();
    let mut split = words.split(Text { text: text.join(" ") }).await?.into_inner();
    for word in text {
        assert_eq!(split.message().await?.map(|message| message.text), Some(word));
    }
    assert_eq!(split.message().await?, None);
    println!("{CALLS} calls were answered, and one with a stream of {WORDS} messages");
    Ok(())
}
