//! A fabric that runs in a thread, with a subnet manager of ours.

use pollux_node::fabric::{Config, Fabric, Partitions, config};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

/// A fabric, and a folder of its own.
pub struct Running {
    folder: PathBuf,
    is_over: Arc<AtomicBool>,
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Two hosts at one switch.
    pub fn start(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("pollux-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (wake, woken) = UnixStream::pair().expect("a pair of sockets");
        let is_over = Arc::new(AtomicBool::new(false));
        let (ready, is_ready) = sync_channel(1);
        let plan = Config {
            topology: config::topology("single:2", 1).expect("it is one"),
            seed: 1,
            socket: Some(folder.join("socket")),
            partitions: Some(Partitions::default()),
            ..Config::default()
        };
        let over = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let mut fabric = Fabric::new(plan).expect("it starts");
            ready.send(()).expect("somebody waits");
            fabric.run(woken, || over.load(Ordering::Relaxed)).expect("it runs");
        });
        is_ready.recv().expect("it starts");
        Self { folder, is_over, wake, thread: Some(thread) }
    }

    /// The name of a host's port.
    pub fn port(&self, host: usize) -> String {
        format!("soft:{}@host{host}", self.folder.join("socket").display())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = std::io::Write::write(&mut self.wake, b".");
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the fabric panicked");
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
