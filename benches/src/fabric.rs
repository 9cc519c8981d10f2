//! A fabric of the harness's own: two hosts at a switch, managed, in a thread that naps while
//! traffic goes past it.

use crate::error::PerfError;
use pollux_node::fabric::{Config, Fabric, Partitions, config};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

/// A fabric that runs. It ends with this.
pub struct OwnFabric {
    folder: PathBuf,
    is_over: Arc<AtomicBool>,
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl OwnFabric {
    /// Starts one, in a folder that no other has.
    pub fn start() -> Result<Self, PerfError> {
        static FABRICS: AtomicU32 = AtomicU32::new(0);
        let number = FABRICS.fetch_add(1, Ordering::Relaxed);
        let name = format!("pollux-perf-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder)?;
        let (wake, woken) = UnixStream::pair()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let plan = Config {
            topology: config::topology("single:2", 1)?,
            seed: 1,
            socket: Some(folder.join("fabric")),
            partitions: Some(Partitions::default()),
            ..Config::default()
        };
        let (over, (ready, is_ready)) = (Arc::clone(&is_over), sync_channel(1));
        let thread = std::thread::spawn(move || {
            let mut fabric = match Fabric::new(plan) {
                Ok(fabric) => fabric,
                Err(error) => return drop(ready.send(Err(error))),
            };
            let _ = ready.send(Ok(()));
            if let Err(error) = fabric.run(woken, || over.load(Ordering::Relaxed)) {
                eprintln!("pollux-perf: the fabric has ended: {error}");
            }
        });
        let started = is_ready.recv();
        let own = Self { folder, is_over, wake, thread: Some(thread) };
        match started {
            Ok(Ok(())) => Ok(own),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(PerfError::OtherEnd("the fabric does not start".into())),
        }
    }

    /// The name of a host's port.
    pub fn port(&self, host: u32) -> String {
        format!("soft:{}@host{host}", self.folder.join("fabric").display())
    }
}

impl Drop for OwnFabric {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.wake.write(b".");
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
