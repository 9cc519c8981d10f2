//! Pinned connections in tasks of tokio: by its traits, by hyper, and by the traits of futures-io.

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, client, server};
use hyper_util::rt::TokioIo;
use pollux::pinned::{Config, Interface, TcpListener, TcpStream};
use pollux::{Mode, Node};
use pollux_node::fabric::Embedded;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, copy_bidirectional, split};
use tokio::runtime::{Builder, Runtime};

/// Ends a hang.
const LIMIT: Duration = Duration::from_secs(60);

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()
}

/// Runs a test, with so many hosts.
fn run<F: Future<Output = ()>>(hosts: usize, test: impl FnOnce(Vec<Interface>) -> F) {
    let fabric = Embedded::start(&format!("single:{hosts}")).unwrap();
    runtime().block_on(async {
        let mut interfaces = Vec::new();
        for host in 1..=hosts {
            let node = Node::open(&fabric.port(&format!("host{host}"))).unwrap();
            let ib0 = node.interface("ib0").address(&format!("10.0.0.{host}/24")).mode(Mode::Rc);
            interfaces.push(ib0.up_pinned_async(Config::default()).await.unwrap());
        }
        tokio::time::timeout(LIMIT, test(interfaces)).await.expect("it hangs");
    });
}

fn at(host: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], port))
}

/// Bytes of a position in a stream.
fn bytes(from: usize, count: usize) -> Vec<u8> {
    (from..from + count).map(|nth| (nth * 31 + nth / 256) as u8).collect()
}

/// Sends back what it receives, until the end.
async fn echo(stream: TcpStream) {
    let (mut from, mut to) = split(stream);
    copy(&mut from, &mut to).await.unwrap();
    to.shutdown().await.unwrap();
}

async fn accept(listener: TcpListener, count: usize) {
    for _ in 0..count {
        tokio::spawn(echo(listener.accept_async().await.unwrap().0));
    }
}

/// Sends so many bytes, and expects them back.
async fn exchange(stream: TcpStream, count: usize) {
    let (mut from, mut to) = split(stream);
    let sending = tokio::spawn(async move {
        to.write_all(&bytes(0, count)).await.unwrap();
        to.shutdown().await.unwrap();
    });
    let mut received = Vec::new();
    from.read_to_end(&mut received).await.unwrap();
    assert!(received == bytes(0, count), "{} of {count} bytes", received.len());
    sending.await.unwrap();
}

#[test]
fn five_hundred_connections_echo_in_one_runtime() {
    const CONNECTIONS: usize = 500;
    run(2, async |hosts| {
        let listener = hosts[0].tcp_listen(at(1, 7), CONNECTIONS).unwrap();
        tokio::spawn(accept(listener, CONNECTIONS));
        let mut exchanges = Vec::new();
        for _ in 0..CONNECTIONS {
            let stream = hosts[1].tcp_connect_async(at(1, 7)).await.unwrap();
            exchanges.push(tokio::spawn(exchange(stream, 10_000)));
        }
        for exchange in exchanges {
            exchange.await.unwrap();
        }
    });
}

#[test]
fn a_proxy_copies_both_ways() {
    run(3, async |hosts| {
        let listener = hosts[0].tcp_listen(at(1, 7), 4).unwrap();
        tokio::spawn(accept(listener, 1));
        let proxied = hosts[1].tcp_listen(at(2, 7), 4).unwrap();
        let mut onward = hosts[1].tcp_connect_async(at(1, 7)).await.unwrap();
        let stream = hosts[2].tcp_connect_async(at(2, 7)).await.unwrap();
        let copying = tokio::spawn(async move {
            let (mut stream, _) = proxied.accept_async().await.unwrap();
            copy_bidirectional(&mut stream, &mut onward).await.unwrap()
        });
        exchange(stream, 1 << 20).await;
        assert_eq!(copying.await.unwrap(), (1 << 20, 1 << 20));
    });
}

#[test]
fn a_read_that_is_cancelled_loses_no_byte() {
    const COUNT: usize = 200;
    const READ_MAX: Duration = Duration::from_micros(100);
    run(2, async |hosts| {
        let listener = hosts[0].tcp_listen(at(1, 7), 4).unwrap();
        let mut sender = hosts[1].tcp_connect_async(at(1, 7)).await.unwrap();
        let (mut receiver, _) = listener.accept_async().await.unwrap();
        let (mut received, mut buffer) = (Vec::new(), [0; 7]);
        // Nothing is sent yet.
        assert!(tokio::time::timeout(READ_MAX, receiver.read(&mut buffer)).await.is_err());
        let sending = tokio::spawn(async move {
            for nth in 0..COUNT {
                sender.write_all(&bytes(nth * 10, 10)).await.unwrap();
                tokio::time::sleep(Duration::from_micros(300)).await;
            }
        });
        loop {
            match tokio::time::timeout(READ_MAX, receiver.read(&mut buffer)).await {
                Err(_) => {}
                Ok(Ok(0)) => break,
                Ok(count) => received.extend_from_slice(&buffer[..count.unwrap()]),
            }
        }
        assert!(received == bytes(0, COUNT * 10), "{} bytes", received.len());
        sending.await.unwrap();
    });
}

#[test]
fn futures_io_reads_and_writes() {
    use futures_io::{AsyncRead, AsyncWrite};
    run(2, async |hosts| {
        let listener = hosts[0].tcp_listen(at(1, 7), 4).unwrap();
        tokio::spawn(accept(listener, 1));
        let mut stream = hosts[1].tcp_connect_async(at(1, 7)).await.unwrap();
        let pinned = &mut Pin::new(&mut stream);
        let written = poll_fn(|context| AsyncWrite::poll_write(pinned.as_mut(), context, b"abc"));
        assert_eq!(written.await.unwrap(), 3);
        poll_fn(|context| AsyncWrite::poll_flush(pinned.as_mut(), context)).await.unwrap();
        poll_fn(|context| AsyncWrite::poll_close(pinned.as_mut(), context)).await.unwrap();
        let mut received = Vec::new();
        loop {
            let mut buffer = [0; 8];
            let read =
                poll_fn(|context| AsyncRead::poll_read(pinned.as_mut(), context, &mut buffer));
            match read.await.unwrap() {
                0 => break,
                count => received.extend_from_slice(&buffer[..count]),
            }
        }
        assert_eq!(received, b"abc");
    });
}

async fn reverse(request: Request<Incoming>) -> hyper::Result<Response<Full<Bytes>>> {
    let mut body = request.into_body().collect().await?.to_bytes().to_vec();
    body.reverse();
    Ok(Response::new(Full::new(body.into())))
}

#[test]
fn hyper_answers_requests_of_many_connections() {
    const CONNECTIONS: usize = 20;
    const REQUESTS: usize = 20;
    run(2, async |hosts| {
        let listener = hosts[0].tcp_listen(at(1, 80), CONNECTIONS).unwrap();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept_async().await.unwrap();
                let builder = server::conn::http1::Builder::new();
                let served = builder.serve_connection(TokioIo::new(stream), service_fn(reverse));
                tokio::spawn(async { served.await.unwrap() });
            }
        });
        let mut clients = Vec::new();
        for nth in 0..CONNECTIONS {
            let stream = hosts[1].tcp_connect_async(at(1, 80)).await.unwrap();
            let client = client::conn::http1::handshake(TokioIo::new(stream));
            let (mut requests, connection) = client.await.unwrap();
            let connection = tokio::spawn(async { connection.await.unwrap() });
            clients.push(tokio::spawn(async move {
                for request in 0..REQUESTS {
                    let mut body = bytes(nth + request, 1 + nth * 997);
                    let posted = Request::post("/").body(Full::<Bytes>::from(body.clone()));
                    let answer = requests.send_request(posted.unwrap()).await.unwrap();
                    body.reverse();
                    assert!(answer.collect().await.unwrap().to_bytes() == body);
                }
                drop(requests);
                connection.await.unwrap();
            }));
        }
        for client in clients {
            client.await.unwrap();
        }
    });
}
