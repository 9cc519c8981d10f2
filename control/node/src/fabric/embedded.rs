//! A fabric in a thread of this process: for `soft:`, the demonstration and tests.
//!
//! The fabric has an admin socket, so `pollux show` works as with any other fabric. The socket is
//! in a new folder, private to the user, which is removed when the fabric is dropped. If a process
//! is killed, the next fabric that any process starts removes its folder.

use super::{FabricConfig, FabricStartError, Partitions, RunningFabric, config};
use pollux_wire::mad::smp::NodeType;
use std::fs::DirBuilder;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

const PRIVATE: &str = "single:16";

/// A fabric that runs in a thread until it is dropped.
#[derive(Debug)]
pub struct Embedded {
    folder: PathBuf,
    hosts: Vec<String>,
    /// Counts calls of [`Embedded::ports_in_turn`].
    turn: AtomicUsize,
    is_over: Arc<AtomicBool>,
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Embedded {
    /// Starts a fabric of this topology, such as `single:3`, with an embedded subnet manager.
    pub fn start(topology: &str) -> Result<Self, FabricStartError> {
        let partitions = Some(Partitions::default());
        Self::start_as(topology, FabricConfig { partitions, ..FabricConfig::default() })
    }

    /// Starts a fabric without a subnet manager. Programs at the ports `managers` may be one.
    pub fn start_unmanaged(topology: &str, managers: &[&str]) -> Result<Self, FabricStartError> {
        let managers = managers.iter().map(|port| port.to_string()).collect();
        Self::start_as(topology, FabricConfig { managers, ..FabricConfig::default() })
    }

    fn start_as(topology: &str, config: FabricConfig) -> Result<Self, FabricStartError> {
        let topology = config::topology(topology, 1, |_| {})?;
        let is_host = |kind| kind == NodeType::CHANNEL_ADAPTER;
        let hosts = topology.nodes().iter().filter(|node| is_host(node.kind));
        let hosts = hosts.map(|node| node.name.clone()).collect();
        const WHAT: &str = "a fabric of this process";
        let (wake, woken) = UnixStream::pair().map_err(FabricStartError::of(WHAT))?;
        let (is_over, turn) = (Arc::new(AtomicBool::new(false)), AtomicUsize::new(0));
        let folder = folder().map_err(FabricStartError::of(WHAT))?;
        let socket = Some(socket(&folder));
        let plan = FabricConfig { topology, seed: 1, socket, ..config };
        // From here on, dropping this removes the folder.
        let mut embedded = Self { folder, hosts, turn, is_over, wake, thread: None };
        let (sender, started) = sync_channel(1);
        let is_over = Arc::clone(&embedded.is_over);
        let run = move || run(plan, &sender, woken, &is_over);
        let thread = std::thread::Builder::new().name("fabric".into()).spawn(run);
        embedded.thread = Some(thread.map_err(FabricStartError::of(WHAT))?);
        started
            .recv()
            .map_err(|_| FabricStartError::new("a fabric of this process panicked"))??;
        Ok(embedded)
    }

    /// The device name of the port of a host.
    pub fn port(&self, host: &str) -> String {
        format!("soft:{}@{host}", self.path().display())
    }

    /// The admin socket.
    pub fn path(&self) -> PathBuf {
        socket(&self.folder)
    }

    /// The device names of all hosts, each time beginning with the next host.
    pub(crate) fn ports_in_turn(&self) -> impl Iterator<Item = String> {
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        let hosts = self.hosts.iter().cycle().skip(first % self.hosts.len().max(1));
        hosts.take(self.hosts.len()).map(|host| self.port(host))
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.wake.write(b".");
        if let Some(thread) = self.thread.take() {
            // A panic was printed already.
            let _ = thread.join();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn run(
    plan: FabricConfig,
    sender: &SyncSender<Result<(), FabricStartError>>,
    wake: UnixStream,
    is_over: &AtomicBool,
) {
    let (fabric, started) = match RunningFabric::new(plan) {
        Ok(fabric) => (Some(fabric), Ok(())),
        Err(error) => (None, Err(error)),
    };
    if sender.send(started).is_ok()
        && let Some(mut fabric) = fabric
    {
        // If the fabric fails, processes at its ports see their connections close.
        let _ = fabric.run(wake, || is_over.load(Ordering::Relaxed));
    }
}

/// The private fabric of this process, shared by all devices `soft:`.
pub(crate) fn private() -> Result<Arc<Embedded>, FabricStartError> {
    static KNOWN: Mutex<Weak<Embedded>> = Mutex::new(Weak::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(fabric) = known.upgrade() {
        return Ok(fabric);
    }
    let fabric = Arc::new(Embedded::start(PRIVATE)?);
    *known = Arc::downgrade(&fabric);
    Ok(fabric)
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("fabric")
}

const FOLDERS: &str = "pollux-fabric-";

/// Creates a private folder, with a new name.
fn folder() -> std::io::Result<PathBuf> {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let within = std::env::temp_dir();
    sweep(&within);
    loop {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let folder = within.join(format!("{FOLDERS}{}-{number}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => return made.map(|()| folder),
        }
    }
}

/// Removes folders of killed processes: nothing listens at the socket, and no process has the
/// number in the name. The number is checked because a starting process also has, for a moment, a
/// socket without a listener. The kernel refuses to remove the folders of other users.
fn sweep(within: &Path) {
    for entry in std::fs::read_dir(within).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(FOLDERS)?.split('-').next());
        let Some(number) = number else { continue };
        let asked = UnixStream::connect(socket(&entry.path()));
        let is_refused = asked.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
        if is_refused && !Path::new("/proc").join(number).exists() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_fabric_removes_its_folder() {
        let fabric = Embedded::start("single:2").unwrap();
        let folder = fabric.path().parent().unwrap().to_owned();
        assert!(folder.is_dir());
        assert_eq!(fabric.hosts, ["host1", "host2"]);
        let ports: Vec<_> = fabric.ports_in_turn().collect();
        assert_eq!(ports, [fabric.port("host1"), fabric.port("host2")]);
        assert_eq!(fabric.ports_in_turn().next(), Some(fabric.port("host2")));
        drop(fabric);
        assert!(!folder.exists());
    }

    #[test]
    fn an_invalid_topology_is_refused_with_the_reason() {
        let error = Embedded::start("single:none").unwrap_err();
        assert!(error.to_string().contains("single:none"), "{error}");
    }

    #[test]
    fn folders_of_killed_processes_alone_are_removed() {
        // No process has a number above the kernel's largest.
        const KILLED: &str = "4194305-0";
        let within = folder().unwrap();
        let own = format!("{}-99", std::process::id());
        let [killed, starting, binding] =
            [KILLED, "4194306-0", &own].map(|name| within.join(format!("{FOLDERS}{name}")));
        for folder in [&killed, &starting, &binding] {
            std::fs::create_dir(folder).unwrap();
        }
        for folder in [&killed, &binding] {
            drop(std::os::unix::net::UnixListener::bind(socket(folder)).unwrap());
        }
        sweep(&within);
        assert_eq!([&killed, &starting, &binding].map(|one| one.exists()), [false, true, true]);
        std::fs::remove_dir_all(within).unwrap();
    }
}
