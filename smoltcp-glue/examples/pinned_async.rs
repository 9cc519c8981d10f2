//! Many tasks of one thread wait for sockets. The executor here has twenty lines; any other one
//! works too.
//!
//! ```sh
//! cargo run --release -p pollux --example pinned_async
//! ```

use pollux::pinned::{Config, Interface};
use pollux::{Mode, Node};
use std::error::Error;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

const SOCKETS: u16 = 100;
const QUESTIONS: u32 = 100;

type Task<'a> = Pin<Box<dyn Future<Output = io::Result<()>> + 'a>>;

fn main() -> Result<(), Box<dyn Error>> {
    let up = |address| {
        let setup = Node::open("soft:")?.interface("ib0").address(address).mode(Mode::Rc);
        setup.up_pinned(Config::default())
    };
    let (server, client) = (up("10.0.0.1/24")?, up("10.0.0.2/24")?);
    // Resolves the path before the connections.
    client.ping("10.0.0.1".parse()?, 64, std::time::Duration::from_secs(10))?;
    let mut tasks: Vec<Task<'_>> = Vec::new();
    for port in 7000..7000 + SOCKETS {
        let at = SocketAddr::from(([10, 0, 0, 1], port));
        tasks.push(Box::pin(answer(&server, at)));
        tasks.push(Box::pin(ask(&client, at)));
    }
    run(tasks)?;
    println!("{SOCKETS} connections of one thread had {QUESTIONS} questions answered each");
    Ok(())
}

async fn answer(interface: &Interface, at: SocketAddr) -> io::Result<()> {
    let (stream, _) = interface.tcp_listen(at, 1)?.accept_async().await?;
    let mut question = [0; 64];
    loop {
        match stream.read_async(&mut question).await? {
            0 => return Ok(()),
            len => stream.write_all_async(&question[..len]).await?,
        }
    }
}

async fn ask(interface: &Interface, at: SocketAddr) -> io::Result<()> {
    let stream = interface.tcp_connect_async(at).await?;
    for number in 0..QUESTIONS {
        let (question, mut answer, mut have) = (number.to_be_bytes(), [0; 4], 0);
        stream.write_all_async(&question).await?;
        while have < answer.len() {
            have += stream.read_async(&mut answer[have..]).await?;
        }
        assert_eq!(answer, question);
    }
    Ok(())
}

/// Runs tasks in this thread until all are done.
fn run(tasks: Vec<Task<'_>>) -> io::Result<()> {
    let flag = || Arc::new(Flag(AtomicBool::new(true), std::thread::current()));
    let mut tasks: Vec<_> = tasks.into_iter().map(|task| (task, flag())).collect();
    while !tasks.is_empty() {
        let mut failed = None;
        tasks.retain_mut(|(task, flag)| {
            if !flag.0.swap(false, Ordering::Acquire) {
                return true;
            }
            match task.as_mut().poll(&mut Context::from_waker(&Waker::from(flag.clone()))) {
                Poll::Pending => true,
                Poll::Ready(outcome) => {
                    failed = failed.take().or(outcome.err());
                    false
                }
            }
        });
        failed.map_or(Ok(()), Err)?;
        if !tasks.is_empty() && tasks.iter().all(|(_, flag)| !flag.0.load(Ordering::Relaxed)) {
            std::thread::park();
        }
    }
    Ok(())
}

/// The flag of a woken task, and the thread to unpark.
struct Flag(AtomicBool, Thread);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
        self.1.unpark();
    }
}
