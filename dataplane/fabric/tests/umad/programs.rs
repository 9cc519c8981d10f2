//! A subnet served in a thread, and programs run against it.

use pollux_fabric::link::Wire;
use pollux_fabric::net::Net;
use pollux_fabric::subnet::Subnet;
use pollux_fabric::topology::Topology;
use pollux_fabric::umad::Sockets;
use pollux_fabric::{Fabric, Time};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The time limit of a program. None takes a tenth of it.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A subnet with sockets for programs.
pub struct Served {
    name: String,
    preload: PathBuf,
    folder: PathBuf,
    is_over: Arc<AtomicBool>,
    orders: mpsc::Sender<Order>,
    thread: JoinHandle<()>,
}

/// A change of the subnet by a test while it is served.
type Order = Box<dyn FnOnce(&mut Fabric) + Send>;

/// The output of a program, and whether it succeeded.
#[derive(Debug)]
pub struct Ran {
    pub is_ok: bool,
    pub output: String,
    pub errors: String,
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
        Self::of(test, Topology::generate(spec, 1).expect("a topology"))
    }

    /// Serves this topology; `None` after having said that `test` is skipped.
    pub fn of(test: &str, topology: Topology) -> Option<Self> {
        let preload = preload(test)?;
        let name = format!("pollux-{}-{test}", std::process::id());
        let folder = env::temp_dir().join(&name);
        fs::create_dir_all(&folder).expect("a folder for what programs write");
        let mut fabric = Fabric::new(Net::new(Subnet::new(topology), 0, Wire::default()));
        fabric.program_sockets = Some(Sockets::bind(&name).expect("sockets"));
        let is_over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&is_over);
        let (orders, ordered) = mpsc::channel();
        let thread = thread::spawn(move || serve(fabric, &ordered, &until));
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
        let output = result.recv_timeout(WAIT_MAX);
        let output = output.unwrap_or_else(|_| panic!("{program:?} (process {id}) hangs"));
        let output = output.expect("its output");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into();
        let is_ok = output.status.success();
        Ran { is_ok, output: text(&output.stdout), errors: text(&output.stderr) }
    }

    /// Starts a program at a node, which keeps running.
    pub fn start(&self, at: &str, program: &Path, arguments: &[&str]) -> Running {
        let mut command = self.command(at, program, arguments);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Running(child.expect("the program starts"))
    }

    /// Starts OpenSM at a node, and waits until it reports that the subnet is up.
    pub fn start_opensm(&self, at: &str, program: &Path) -> OpenSm {
        // No sweeps except after traps.
        let opensm = self.start_opensm_with(at, program, &["-s", "0"]);
        opensm.wait_for("SUBNET UP");
        opensm
    }

    /// Starts OpenSM at a node, with more arguments.
    pub fn start_opensm_with(&self, at: &str, program: &Path, arguments: &[&str]) -> OpenSm {
        let log = format!("osm-{at}.log");
        // It waits 2 s for an answer, not 200 ms: agents may have to wait for a processor.
        let arguments = [&["-e", "-f", &log, "-d", "2", "-t", "2000"], arguments].concat();
        OpenSm { _running: self.start(at, program, &arguments), log: self.folder.join(log) }
    }

    /// Writes a file into the folder where programs run.
    pub fn write(&self, file: &str, text: &str) {
        fs::write(self.folder.join(file), text).expect("a file");
    }

    /// Does something to the subnet.
    pub fn with<T: Send + 'static>(
        &self,
        order: impl FnOnce(&mut Fabric) -> T + Send + 'static,
    ) -> T {
        let (done, result) = mpsc::channel();
        let order = move |fabric: &mut Fabric| done.send(order(fabric)).expect("somebody waits");
        self.orders.send(Box::new(order)).expect("the server runs");
        result.recv_timeout(WAIT_MAX).expect("the server answers")
    }

    /// Whether the subnet gets to be so, sooner or later.
    pub fn becomes(&self, is_so: impl Fn(&Fabric) -> bool + Copy + Send + 'static) -> bool {
        wait_until(|| self.with(move |fabric| is_so(fabric)))
    }
}

/// Whether a condition becomes true within `WAIT_MAX`.
pub fn wait_until(mut is_so: impl FnMut() -> bool) -> bool {
    const STEP: Duration = Duration::from_millis(10);
    let (_never, nothing) = mpsc::channel::<()>();
    (0..WAIT_MAX.as_millis() / STEP.as_millis()).any(|_| {
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

impl Running {
    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("it is ours").is_some()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// OpenSM that runs on, and its log.
pub struct OpenSm {
    _running: Running,
    log: PathBuf,
}

impl OpenSm {
    fn logged(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into()
    }

    /// Waits until it has logged something.
    pub fn wait_for(&self, text: &str) {
        assert!(wait_until(|| self.logged().contains(text)), "no {text} in:\n{}", self.logged());
    }

    /// Its logged errors.
    pub fn errors(&self) -> Vec<String> {
        self.logged().lines().filter(|line| line.contains("ERR")).map(str::to_owned).collect()
    }
}

#[expect(clippy::disallowed_methods, reason = "programs live in the machine's time")]
fn serve(mut fabric: Fabric, orders: &mpsc::Receiver<Order>, is_over: &AtomicBool) {
    let began = Instant::now();
    let now = || Time::START + began.elapsed();
    while !is_over.load(Ordering::Relaxed) {
        let longest = fabric.prepare_wait(now(), Duration::from_millis(5));
        fabric.wait(longest, Vec::new()).expect("poll");
        fabric.step(now()).expect("sockets");
        orders.try_iter().for_each(|order| order(&mut fabric));
    }
}
