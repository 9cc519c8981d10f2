//! A proxy that copies bytes in both directions between a client on InfiniBand and a server on the
//! kernel's TCP, as a gateway to a service without InfiniBand.
//!
//! ```sh
//! cargo run --release -p pollux-tasks --bin proxy
//! ```
#![forbid(unsafe_code)]

use pollux_tasks::up;
use std::error::Error;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, copy_bidirectional, split};
use tokio::net::{TcpListener, TcpStream};

const CLIENTS: u32 = 20;
const BYTES: usize = 300_000;

/// The service behind the proxy, which echoes all bytes.
async fn echo(listener: TcpListener) -> io::Result<()> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let (mut reader, mut writer) = stream.split();
            copy(&mut reader, &mut writer).await
        });
    }
}

async fn forward(listener: pollux::pinned::TcpListener, to: SocketAddr) -> io::Result<()> {
    loop {
        let (mut client, _) = listener.accept_async().await?;
        tokio::spawn(async move {
            let mut server = TcpStream::connect(to).await?;
            copy_bidirectional(&mut client, &mut server).await
        });
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let service = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let to = service.local_addr()?;
    tokio::spawn(echo(service));

    let at = SocketAddr::from(([10, 0, 0, 1], 80));
    let (gateway, client) = (up("10.0.0.1/24").await?, up("10.0.0.2/24").await?);
    tokio::spawn(forward(gateway.tcp_listen(at, 128)?, to));

    let requests = (0..CLIENTS).map(|number| {
        let client = client.clone();
        async move {
            let stream = client.tcp_connect_async(at).await?;
            let (mut reader, mut writer) = split(stream);
            let sent = vec![number as u8; BYTES];
            let writing = async {
                writer.write_all(&sent).await?;
                writer.shutdown().await
            };
            let mut received = Vec::new();
            let (written, read) = tokio::join!(writing, reader.read_to_end(&mut received));
            written.and(read)?;
            assert!(received == sent, "{number}: {} bytes came back", received.len());
            io::Result::Ok(())
        }
    });
    for end in futures_util::future::join_all(requests).await {
        end?;
    }
    println!("{CLIENTS} clients got {BYTES} bytes back each");
    Ok(())
}
