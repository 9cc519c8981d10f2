//! A subnet served in a thread, and programs run against it.

use pollux_fabric::Time;
use pollux_fabric::subnet::Subnet;
use pollux_fabric::topology::Topology;
use pollux_fabric::umad::{Clients, Server};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long any program may take here. None takes a tenth of it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A subnet that programs find.
pub struct Served {
    name: String,
    preload: PathBuf,
    folder: PathBuf,
    is_over: Arc<AtomicBool>,
    orders: mpsc::Sender<Order>,
    thread: JoinHandle<()>,
}

/// What a test does to the subnet while it is served.
type Order = Box<dyn FnOnce(&mut Subnet) + Send>;

/// What a program has printed, and whether it was content.
#[derive(Debug)]
pub struct Ran {
    pub is_ok: bool,
    pub output: String,
}

/// The library that programs are run with; `None` after having said that `test` is skipped.
#[expect(clippy::disallowed_methods, reason = "what is required is the environment's to say")]
fn preload(test: &str) -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").ok()?.flatten();
    let paths = folders.map(|folder| folder.path().join("umad2sim/libumad2sim.so"));
    let found = paths.into_iter().find(|path| path.is_file());
    if found.is_none() {
        let is_required = env::var_os("POLLUX_REFEREES").is_some_and(|value| value == "required");
        assert!(!is_required, "{test} needs libumad2sim.so; run scripts/host-setup --referees");
        println!("SKIP {test}: libumad2sim.so is not installed (scripts/host-setup --referees)");
    }
    found
}

impl Served {
    /// Serves such a topology; `None` after having said that `test` is skipped.
    pub fn new(test: &str, spec: &str) -> Option<Self> {
        let preload = preload(test)?;
        let name = format!("pollux-{}-{test}", std::process::id());
        let folder = env::temp_dir().join(&name);
        fs::create_dir_all(&folder).expect("a folder for what programs write");
        let topology = Topology::generate(spec, 1).expect("a topology");
        let server = Server::bind(&name, Clients::new(Subnet::new(topology))).expect("sockets");
        let is_over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&is_over);
        let (orders, ordered) = mpsc::channel();
        let thread = thread::spawn(move || serve(server, &ordered, &until));
        Some(Self { name, preload, folder, is_over, orders, thread })
    }

    fn command(&self, at: &str, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.folder).stdin(Stdio::null());
        command.env("LD_PRELOAD", &self.preload).env("IBSIM_SOCKNAME", &self.name);
        command.env("SIM_HOST", at).env("OSM_TMP_DIR", ".").env("OSM_CACHE_DIR", ".");
        command
    }

    /// Runs a program at a node, to its end.
    pub fn run(&self, at: &str, program: &Path, arguments: &[&str]) -> Ran {
        let (done, result) = mpsc::channel();
        let child = self
            .command(at, program, arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let id = child.id();
        thread::spawn(move || done.send(child.wait_with_output()));
        let output = result.recv_timeout(PATIENCE);
        let output = output.unwrap_or_else(|_| panic!("{program:?} (process {id}) hangs"));
        let output = output.expect("its output");
        let text = [output.stdout, output.stderr].concat();
        Ran { is_ok: output.status.success(), output: String::from_utf8_lossy(&text).into() }
    }

    /// Starts OpenSM at a node, and waits until it says that the subnet is up.
    pub fn start_opensm(&self, at: &str, program: &Path) -> Running {
        let log = self.folder.join("osm.log");
        // No sweep but those that a trap asks for.
        let arguments = ["-e", "-f", "osm.log", "-d", "2", "-s", "0"];
        let mut command = self.command(at, program, &arguments);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let running = Running(child.expect("OpenSM starts"));
        self.wait_for(&log, "SUBNET UP");
        running
    }

    /// What OpenSM has logged as errors.
    pub fn errors_of_opensm(&self) -> Vec<String> {
        let log = fs::read(self.folder.join("osm.log")).expect("it logs");
        let log = String::from_utf8_lossy(&log);
        log.lines().filter(|line| line.contains("ERR")).map(str::to_owned).collect()
    }

    /// Waits until a file says something.
    fn wait_for(&self, file: &Path, text: &str) {
        let says =
            || fs::read(file).is_ok_and(|said| String::from_utf8_lossy(&said).contains(text));
        let is_so = wait_until(says);
        assert!(is_so, "no {text} in:\n{}", fs::read_to_string(file).unwrap_or_default());
    }

    /// Does something to the subnet.
    pub fn with<T: Send + 'static>(
        &self,
        order: impl FnOnce(&mut Subnet) -> T + Send + 'static,
    ) -> T {
        let (done, result) = mpsc::channel();
        let order = move |subnet: &mut Subnet| done.send(order(subnet)).expect("somebody waits");
        self.orders.send(Box::new(order)).expect("the server runs");
        result.recv_timeout(PATIENCE).expect("the server answers")
    }

    /// Whether the subnet gets to be so, sooner or later.
    pub fn becomes(&self, is_so: fn(&Subnet) -> bool) -> bool {
        wait_until(|| self.with(move |subnet| is_so(subnet)))
    }
}

/// Whether something gets to be so within our patience.
fn wait_until(is_so: impl Fn() -> bool) -> bool {
    const STEP: Duration = Duration::from_millis(10);
    let (_never, nothing) = mpsc::channel::<()>();
    (0..PATIENCE.as_millis() / STEP.as_millis()).any(|_| {
        let is_so = is_so();
        if !is_so {
            let _ = nothing.recv_timeout(STEP);
        }
        is_so
    })
}

impl Drop for Served {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        assert!(thread::panicking() || wait_until(|| self.thread.is_finished()));
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A program that runs on; it ends with this.
pub struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[expect(clippy::disallowed_methods, reason = "programs live in the machine's time")]
fn serve(mut server: Server, orders: &mpsc::Receiver<Order>, is_over: &AtomicBool) {
    let began = Instant::now();
    let now = || Time::START + began.elapsed();
    while !is_over.load(Ordering::Relaxed) {
        server.wait(now(), Duration::from_millis(5)).expect("poll");
        server.turn(now()).expect("sockets");
        orders.try_iter().for_each(|order| order(server.clients().subnet_mut()));
    }
}
