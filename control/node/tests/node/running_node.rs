//! A node that runs in threads of its own, whose control thread a test may stall.

use crate::host::TIMEOUT;
use pollux_node::admin::client::{AskError, Client};
use pollux_node::config::NodeConfig;
use pollux_node::node::{NodeRunner, Order};
use pollux_node::service::ServiceManager;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

/// A node, until it is dropped.
pub struct RunningNode {
    socket: PathBuf,
    is_over: Arc<AtomicBool>,
    gate: Arc<Gate>,
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
}

/// Where the control thread passes in each of its turns.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    is_closed: bool,
    is_waiting: bool,
}

/// A control thread that stands still until this is dropped.
pub struct Stall(Arc<Gate>);

impl RunningNode {
    pub fn start(socket: &Path, config: NodeConfig) -> Self {
        Self::supervised(socket, config, ServiceManager::default())
    }

    /// A node that reports its state to a service manager.
    pub fn supervised(socket: &Path, config: NodeConfig, manager: ServiceManager) -> Self {
        let (wake, woken) = UnixStream::pair().expect("a pair of sockets");
        let (is_over, gate) = (Arc::new(AtomicBool::new(false)), Arc::new(Gate::default()));
        let (over, passed) = (Arc::clone(&is_over), Arc::clone(&gate));
        let node = NodeRunner::new(config, Some(socket)).expect("it starts").supervised_by(manager);
        let thread = spawn(move || {
            let order = || {
                passed.pass();
                if over.load(Ordering::Relaxed) { Order::End } else { Order::Run }
            };
            node.run(woken, order, |_| {}).expect("it runs");
        });
        Self { socket: socket.into(), is_over, gate, wake, thread: Some(thread) }
    }

    pub fn client(&self) -> Client {
        // A node that is not optimized may have to build long tables for others first.
        Client::new(&self.socket, TIMEOUT).silence_max(TIMEOUT)
    }

    /// A client that sends a request and never reads.
    pub fn silent(&self, request: &str) -> UnixStream {
        let mut stream = UnixStream::connect(&self.socket).expect("it listens");
        stream.write_all(request.as_bytes()).expect("it has space");
        stream
    }

    /// Stops the control thread, and nothing else, between two of its turns.
    pub fn stall(&self) -> Stall {
        let gate = Arc::clone(&self.gate);
        gate.state.lock().expect("no test has panicked").is_closed = true;
        (&self.wake).write_all(&[0]).expect("it has space");
        let state = gate.state.lock().expect("no test has panicked");
        let is_running = |state: &mut GateState| !state.is_waiting;
        let waited = gate.changed.wait_timeout_while(state, TIMEOUT, is_running);
        let (state, waited) = waited.expect("no test has panicked");
        assert!(!waited.timed_out(), "it does not pass the gate");
        drop(state);
        Stall(gate)
    }
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock().expect("no test has panicked");
        while state.is_closed {
            state.is_waiting = true;
            self.changed.notify_all();
            state = self.changed.wait(state).expect("no test has panicked");
        }
        state.is_waiting = false;
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        if let Ok(mut state) = self.0.state.lock() {
            state.is_closed = false;
        }
        self.0.changed.notify_all();
    }
}

impl Drop for RunningNode {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.wake.write_all(&[0]);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking());
    }
}

#[expect(clippy::disallowed_methods, reason = "nodes go by the clock")]
pub fn pause(_: &AskError, time: Duration) -> bool {
    std::thread::sleep(time);
    true
}
