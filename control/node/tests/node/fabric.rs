//! A fabric that runs in a thread, with a subnet manager of ours.

use pollux_node::admin::client::ask;
use pollux_node::admin::request::AdminRequest;
use pollux_node::fabric::{FabricConfig, Partitions, Plug, RunningFabric, config};
use pollux_wire::capture::{ErfHeader, FileHeader, RecordHeader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

/// The subnet manager of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manager {
    /// A subnet manager of ours.
    Ours,
    /// OpenSM in the guest.
    Guest,
    /// OpenSM here, at the last host, by way of libumad2sim.
    Umad,
}

/// A fabric, and a folder of its own.
pub struct Running {
    pub folder: PathBuf,
    is_over: Arc<AtomicBool>,
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Hosts at one switch, and the wires of two guests.
    pub fn start(test: &str, hosts: usize, manager: Manager) -> Self {
        let partitions = (manager == Manager::Ours).then(Partitions::default);
        Self::with(test, |folder| plan(folder, hosts, manager, partitions))
    }

    /// Any topology, with a manager of ours that gives each port 2^lmc addresses.
    pub fn spread(test: &str, topology: &str, lmc: u8) -> Self {
        let topology = config::topology(topology, 1, |_| {}).expect("it is one");
        let partitions = Some(Partitions::default());
        Self::with(test, |folder| FabricConfig {
            topology,
            lmc,
            wires: Vec::new(),
            ..plan(folder, 1, Manager::Ours, partitions)
        })
    }

    /// The same with a manager of ours, and these partitions in the syntax of OpenSM.
    pub fn partitioned(test: &str, hosts: usize, text: &str) -> Self {
        let partitions = Partitions::read("test", text).expect("they are partitions");
        Self::with(test, |folder| plan(folder, hosts, Manager::Ours, Some(partitions)))
    }

    fn with(test: &str, plan: impl FnOnce(&Path) -> FabricConfig) -> Self {
        let folder = std::env::temp_dir().join(format!("pollux-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (wake, woken) = UnixStream::pair().expect("a pair of sockets");
        let is_over = Arc::new(AtomicBool::new(false));
        let (ready, is_ready) = sync_channel(1);
        let (over, plan) = (Arc::clone(&is_over), plan(&folder));
        let thread = std::thread::spawn(move || {
            let mut fabric = RunningFabric::new(plan).expect("it starts");
            ready.send(()).expect("somebody waits");
            fabric.run(woken, || over.load(Ordering::Relaxed)).expect("it runs");
        });
        is_ready.recv().expect("it starts");
        Self { folder, is_over, wake, thread: Some(thread) }
    }

    /// Where the first guest, or the second, finds its wire.
    pub fn wire(&self, number: u32) -> PathBuf {
        wire(&self.folder, number)
    }

    /// Asks it as `pollux show` and `pollux fault` do.
    pub fn ask(&self, request: &AdminRequest) -> String {
        let answer = ask(&self.folder.join("socket"), request).expect("it answers");
        answer.to_string()
    }

    /// The name of a host's port.
    pub fn port(&self, host: usize) -> String {
        format!("soft:{}@host{host}", self.folder.join("socket").display())
    }

    /// Its name in libumad2sim.
    pub fn umad(&self) -> String {
        umad(&self.folder)
    }

    /// Ends it; gives every packet that was anywhere on it, LRH to VCRC.
    pub fn end(mut self) -> Vec<Vec<u8>> {
        self.join();
        let capture = std::fs::read(self.folder.join("capture")).expect("it was written");
        packets(&capture)
    }

    fn join(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = std::io::Write::write(&mut self.wake, b".");
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the fabric panicked");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.join();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn wire(folder: &Path, number: u32) -> PathBuf {
    folder.join(format!("wire{number}"))
}

/// A name that no other fabric of this machine has.
fn umad(folder: &Path) -> String {
    folder.file_name().expect("it has one").to_string_lossy().into()
}

fn plan(
    folder: &Path,
    hosts: usize,
    manager: Manager,
    partitions: Option<Partitions>,
) -> FabricConfig {
    let topology = config::topology(&format!("single:{hosts}"), 1, |_| {}).expect("it is one");
    let plug = |number: u32| -> Plug {
        let port = hosts + number as usize;
        let text = format!("switch1:{port}=stream:{}", wire(folder, number).display());
        text.parse().expect("it is one")
    };
    FabricConfig {
        topology,
        seed: 1,
        socket: Some(folder.join("socket")),
        umad: (manager == Manager::Umad).then(|| umad(folder)),
        wires: [1, 2].map(plug).into(),
        managers: match manager {
            // Beside OpenSM here, one in the guest may stand by and take over.
            Manager::Guest | Manager::Umad => {
                [1, 2].map(|wire| format!("switch1:{}", hosts + wire)).into()
            }
            _ => Vec::new(),
        },
        capture: Some(folder.join("capture")),
        partitions,
        ..FabricConfig::default()
    }
}

/// The packets in a file of pcap with ERF records.
fn packets(file: &[u8]) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    let mut rest = file.get(FileHeader::LEN..).unwrap_or_default();
    while let Some((header, behind)) = rest.split_first_chunk() {
        let (record, behind) = behind.split_at(RecordHeader::parse(header).kept_len as usize);
        packets.push(record[ErfHeader::LEN..].to_vec());
        rest = behind;
    }
    packets
}
