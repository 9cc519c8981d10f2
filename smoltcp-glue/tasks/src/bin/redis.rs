//! Redis: a server by the crate `redis-protocol`, and the client of the crate `redis`.
//!
//! ```sh
//! cargo run --release -p pollux-tasks --bin redis
//! ```
#![forbid(unsafe_code)]

use futures_util::future::join_all;
use futures_util::{SinkExt, StreamExt};
use pollux::pinned::{TcpListener, TcpStream};
use pollux_tasks::up;
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, RedisConnectionInfo, RedisResult};
use redis_protocol::codec::Resp2;
use redis_protocol::resp2::types::{BytesFrame, Resp2Frame};
use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio_util::codec::Framed;

const KEYS: usize = 1000;
/// Longer than the buffers of a connection.
const LONG_BYTES: usize = 2_000_000;

type Values = Arc<Mutex<BTreeMap<Vec<u8>, Vec<u8>>>>;

/// The response to a command.
fn execute(command: &[Vec<u8>], values: &Values) -> BytesFrame {
    let mut values = values.lock().unwrap_or_else(PoisonError::into_inner);
    let (name, words) = match command {
        [name, words @ ..] => (name.to_ascii_uppercase(), words),
        [] => return BytesFrame::Error("ERR no command".into()),
    };
    match (&name[..], words) {
        (b"SET", [key, value]) => {
            values.insert(key.clone(), value.clone());
            BytesFrame::SimpleString("OK".into())
        }
        (b"GET", [key]) => match values.get(key) {
            Some(value) => BytesFrame::BulkString(value.clone().into()),
            None => BytesFrame::Null,
        },
        (b"DEL", [key]) => BytesFrame::Integer(values.remove(key).is_some().into()),
        (b"DBSIZE", []) => BytesFrame::Integer(values.len() as i64),
        _ => BytesFrame::Error("ERR unknown command".into()),
    }
}

/// The words of a command, which is an array of strings.
fn words(frame: BytesFrame) -> Vec<Vec<u8>> {
    let words = match frame {
        BytesFrame::Array(words) => words,
        _ => Vec::new(),
    };
    words.into_iter().filter_map(|word| Some(word.as_bytes()?.to_vec())).collect()
}

async fn serve(stream: TcpStream, values: Values) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut frames = Framed::new(stream, Resp2::default());
    while let Some(frame) = frames.next().await {
        let response = execute(&words(frame?), &values);
        frames.send(response).await?;
    }
    Ok(())
}

async fn accept(listener: TcpListener) -> io::Result<()> {
    let values = Values::default();
    loop {
        let (stream, _) = listener.accept_async().await?;
        tokio::spawn(serve(stream, values.clone()));
    }
}

async fn set_and_get(mut redis: MultiplexedConnection) -> RedisResult<()> {
    for number in 0..KEYS {
        redis.set::<_, _, ()>(format!("key {number}"), number).await?;
    }
    let values = (0..KEYS).map(|number| {
        let mut redis = redis.clone();
        async move { redis.get::<_, usize>(format!("key {number}")).await }
    });
    // All requests are sent at the same time, over one connection.
    for (number, value) in join_all(values).await.into_iter().enumerate() {
        assert_eq!(value?, number);
    }
    let long = vec![7_u8; LONG_BYTES];
    redis.set::<_, _, ()>("long", &long).await?;
    assert!(redis.get::<_, Vec<u8>>("long").await? == long, "another value came back");
    assert_eq!(redis.get::<_, Option<String>>("no such key").await?, None);
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let at = SocketAddr::from(([10, 0, 0, 1], 6379));
    let (server, client) = (up("10.0.0.1/24").await?, up("10.0.0.2/24").await?);
    tokio::spawn(accept(server.tcp_listen(at, 128)?));

    let stream = client.tcp_connect_async(at).await?;
    let settings = RedisConnectionInfo::default().set_skip_set_lib_name();
    let (redis, driver) = MultiplexedConnection::new(&settings, stream).await?;
    tokio::select! {
        () = driver => return Err("the connection has ended".into()),
        result = set_and_get(redis) => result?,
    }
    println!("{KEYS} keys and a value of {LONG_BYTES} bytes were set and read");
    Ok(())
}
