//! HTTP by hyper between two hosts of a fabric in this process, in tasks of tokio.
//!
//! ```sh
//! cargo run --release -p pollux --features tokio --example hyper
//! ```

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, client, server};
use hyper_util::rt::TokioIo;
use pollux::pinned::{Config, TcpListener};
use pollux::{Mode, Node};
use std::error::Error;
use std::io;
use std::net::SocketAddr;

const AT: ([u8; 4], u16) = ([10, 0, 0, 1], 80);
const REQUESTS: usize = 1000;

async fn answer(request: Request<Incoming>) -> hyper::Result<Response<Full<Bytes>>> {
    let path = request.uri().path().to_uppercase();
    Ok(Response::new(Full::new(Bytes::from(path))))
}

async fn serve(listener: TcpListener) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept_async().await?;
        let connection = server::conn::http1::Builder::new();
        tokio::spawn(connection.serve_connection(TokioIo::new(stream), service_fn(answer)));
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let at = SocketAddr::from(AT);
    let up = async |address| {
        let setup = Node::open("soft:")?.interface("ib0").address(address).mode(Mode::Rc);
        setup.up_pinned_async(Config::default()).await
    };
    let (server, client) = (up("10.0.0.1/24").await?, up("10.0.0.2/24").await?);
    tokio::spawn(serve(server.tcp_listen(at, 128)?));

    let stream = client.tcp_connect_async(at).await?;
    let (mut requests, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    for number in 0..REQUESTS {
        let request = Request::get(format!("/page/{number}")).body(Full::<Bytes>::default())?;
        let page = requests.send_request(request).await?.collect().await?.to_bytes();
        assert_eq!(page, format!("/PAGE/{number}"));
    }
    println!("{REQUESTS} requests were answered over one connection");
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).build()?.block_on(run())
}
