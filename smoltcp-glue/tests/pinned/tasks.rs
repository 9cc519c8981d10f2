//! Tasks of an executor without support for sockets: a thread, and a flag for each woken task.

use crate::ends::two_with_failing_device;
use crate::{TIMEOUT, Two, at, byte, two};
use pollux::Mode;
use pollux::pinned::{Config, Interface, TcpStream};
use std::future::{Future, poll_fn};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

struct Flag {
    is_up: AtomicBool,
    wakes: AtomicUsize,
    thread: Thread,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
        self.is_up.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

type Task<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Runs tasks in this thread until all are done, and polls each only when it was woken. Returns the
/// number of wakes.
fn run(mut tasks: Vec<Task<'_>>) -> usize {
    let flag = || {
        let (is_up, wakes) = (AtomicBool::new(true), AtomicUsize::new(0));
        Arc::new(Flag { is_up, wakes, thread: std::thread::current() })
    };
    let flags: Vec<_> = tasks.iter().map(|_| flag()).collect();
    let mut done = vec![false; tasks.len()];
    while done.contains(&false) {
        let mut busy = false;
        for ((task, flag), done) in tasks.iter_mut().zip(&flags).zip(&mut done) {
            if !*done && flag.is_up.swap(false, Ordering::AcqRel) {
                let waker = Waker::from(flag.clone());
                *done = task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
                busy = true;
            }
        }
        if !busy {
            // An unpark may be of an earlier wake.
            let is_woken = (0..10).any(|_| {
                std::thread::park_timeout(TIMEOUT / 10);
                flags.iter().any(|flag| flag.is_up.load(Ordering::Relaxed))
            });
            assert!(is_woken, "no task was woken in time");
        }
    }
    flags.iter().map(|flag| flag.wakes.load(Ordering::Relaxed)).sum()
}

/// Polls once, with a waker that does nothing.
fn once<R>(future: Pin<&mut impl Future<Output = R>>) -> Poll<R> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// A connection; retries until the path is resolved.
async fn connect(interface: &Interface, to: SocketAddr) -> TcpStream {
    for _ in 0..100 {
        if let Ok(stream) = interface.tcp_connect_async(to).await {
            return stream;
        }
    }
    panic!("no listener");
}

async fn echo(stream: TcpStream) -> io::Result<()> {
    let mut buffer = [0; 5000];
    loop {
        match stream.read_async(&mut buffer).await? {
            0 => return stream.shutdown(Shutdown::Write),
            len => stream.write_all_async(&buffer[..len]).await?,
        }
    }
}

#[test]
fn one_thread_serves_many_sockets() {
    const STREAMS: usize = 8;
    const BYTES: usize = 600_000;
    let two = two(Mode::Rc);
    let listener = two.second.tcp_listen(at(2, 80), 64).expect("the port is free");
    let (asks, answers) = (
        two.first.udp_bind(at(1, 0)).expect("a port is free"),
        two.second.udp_bind(at(2, 7)).expect("the port is free"),
    );
    let mut tasks: Vec<Task<'_>> = Vec::new();
    // One more than streams: the connection before the datagrams may be accepted before a stream.
    for _ in 0..=STREAMS {
        tasks.push(Box::pin(async {
            let (stream, _) = listener.accept_async().await.expect("a connection");
            echo(stream).await.expect("the peer is connected");
        }));
    }
    for number in 0..STREAMS {
        let first = &two.first;
        tasks.push(Box::pin(async move {
            let stream = connect(first, at(2, 80)).await;
            let all: Vec<u8> = (number..number + BYTES).map(byte).collect();
            let (mut sent, mut back, mut buffer) = (0, Vec::new(), [0; 7000]);
            // Both directions at once, or two full rings wait for each other.
            poll_fn(|context| {
                while sent < BYTES
                    && let Poll::Ready(count) = stream.poll_write(context, &all[sent..])
                {
                    sent += count.expect("it is open");
                }
                while back.len() < BYTES
                    && let Poll::Ready(count) = stream.poll_read(context, &mut buffer)
                {
                    let count = count.expect("it is open");
                    assert!(count > 0, "it ends early");
                    back.extend_from_slice(&buffer[..count]);
                }
                if back.len() < BYTES { Poll::Pending } else { Poll::Ready(()) }
            })
            .await;
            assert!(back == all, "wrong bytes");
            stream.flush_async().await.expect("it is acknowledged");
            stream.shutdown(Shutdown::Write).expect("it is open");
            assert_eq!(stream.read_async(&mut buffer).await.expect("it ends in order"), 0);
        }));
    }
    tasks.push(Box::pin(async {
        let mut buffer = [0; 64];
        for _ in 0..200 {
            let (len, from) = answers.recv_from_async(&mut buffer).await.expect("it is there");
            answers.send_to_async(&buffer[..len], from).await.expect("there is space");
        }
    }));
    tasks.push(Box::pin(async {
        // A connection to the peer was made by now, so no datagram is lost.
        drop(connect(&two.first, at(2, 80)).await);
        let mut buffer = [0; 64];
        for round in 0..200u32 {
            asks.send_to_async(&round.to_ne_bytes(), at(2, 7)).await.expect("there is space");
            let (len, from) = asks.recv_from_async(&mut buffer).await.expect("it is there");
            assert_eq!((&buffer[..len], from), (&round.to_ne_bytes()[..], at(2, 7)));
        }
    }));
    run(tasks);
}

#[test]
fn a_task_is_woken_for_events_only() {
    let two = two(Mode::Rc);
    let listener = two.second.tcp_listen(at(2, 80), 4).expect("the port is free");
    let waits: Task<'_> = Box::pin(async {
        let (stream, _) = listener.accept_async().await.expect("a connection");
        let mut byte = [0];
        assert_eq!(stream.read_async(&mut byte).await.expect("it arrives"), 1);
    });
    let wakes = std::thread::scope(|scope| {
        scope.spawn(|| {
            let stream = crate::sockets::connect(&two.first, at(2, 80));
            std::thread::park_timeout(std::time::Duration::from_millis(30));
            io::Write::write_all(&mut &stream, b"!").expect("it is open");
            io::Write::flush(&mut &stream).expect("it is acknowledged");
        });
        run(vec![waits])
    });
    assert!(wakes <= 4, "woken {wakes} times for a connection and a byte");
}

#[test]
fn a_future_can_be_dropped_at_any_time() {
    let two = two(Mode::Rc);
    let listener = two.second.tcp_listen(at(2, 80), 64).expect("the port is free");
    let socket = two.first.udp_bind(at(1, 7)).expect("the port is free");
    for _ in 0..200 {
        // Before the reply of the worker, or before the answer of the peer.
        let mut connecting = pin!(two.first.tcp_connect_async(at(2, 80)));
        if let Poll::Ready(stream) = once(connecting.as_mut()) {
            drop(stream);
        }
        assert!(once(pin!(socket.recv_from_async(&mut [0; 9]))).is_pending());
        while let Poll::Ready(accepted) = once(pin!(listener.accept_async())) {
            drop(accepted.expect("it is served"));
        }
    }
    // The dropped futures leave no state, and another connection works.
    let served = async {
        loop {
            let (stream, _) = listener.accept_async().await.expect("a connection");
            // Those that were dropped may still be in the queue.
            if let Ok(1) = stream.read_async(&mut [0]).await {
                return stream.write_all_async(b"!").await.expect("it is open");
            }
        }
    };
    let asked = async {
        let stream = connect(&two.first, at(2, 80)).await;
        stream.write_all_async(b"?").await.expect("it is open");
        assert_eq!(stream.read_async(&mut [0]).await.expect("it is open"), 1);
    };
    run(vec![Box::pin(served), Box::pin(asked)]);
}

#[test]
fn tasks_end_when_the_device_fails() {
    let (Two { first, second, fabric: _fabric }, fail) =
        two_with_failing_device(&Config::default(), 0);
    let _listener = second.tcp_listen(at(2, 80), 4).expect("the port is free");
    let listener = first.tcp_listen(at(1, 80), 4).expect("the port is free");
    let socket = first.udp_bind(at(1, 0)).expect("a port is free");
    let check = |error: io::Error| assert!(error.to_string().contains("no device any more"));
    let tasks: Vec<Task<'_>> = vec![
        Box::pin(async { check(listener.accept_async().await.err().expect("no device")) }),
        Box::pin(async {
            check(socket.recv_from_async(&mut [0; 9]).await.expect_err("no device"));
        }),
        Box::pin(async { assert!(connect_and_wait(&first).await.is_err()) }),
    ];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::park_timeout(std::time::Duration::from_millis(30));
            fail();
        });
        run(tasks);
    });
}

async fn connect_and_wait(interface: &Interface) -> io::Result<usize> {
    let stream = interface.tcp_connect_async(at(2, 80)).await?;
    stream.read_async(&mut [0]).await
}
