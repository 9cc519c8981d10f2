//! Management datagrams through libibumad, where there is no adapter: ibsim's `libumad2sim` takes
//! the place of the devices, and our own fabric that of the subnet. The client is the example
//! `mads`.

use pollux_fabric::link::Wire;
use pollux_fabric::net::Net;
use pollux_fabric::subnet::Subnet;
use pollux_fabric::topology::Topology;
use pollux_fabric::umad::Sockets;
use pollux_fabric::{Fabric, Time};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The programs of the test, and their directory.
struct Bench {
    mads: PathBuf,
    preload: PathBuf,
    name: String,
    folder: PathBuf,
}

/// OpenSM; it ends with this.
struct Manager(Child);

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Bench {
    /// `None` if something is missing, which is printed.
    fn new(test: &str) -> Option<Self> {
        pollux_referee::program(test, "ibsim")?;
        let folders = fs::read_dir("/usr/lib").expect("libraries").flatten();
        let paths = folders.map(|folder| folder.path().join("umad2sim/libumad2sim.so"));
        let preload = paths.into_iter().find(|path| path.is_file());
        let preload = preload.expect("libumad2sim.so is there where ibsim is");
        let built = pollux_referee::adapters::built("pollux-ibverbs", &["--example", "mads"]);
        let name = format!("pollux-{}-{test}", std::process::id());
        let folder = std::env::temp_dir().join(&name);
        fs::create_dir_all(&folder).expect("a folder for what programs write");
        Some(Self { mads: built.join("examples/mads"), preload, name, folder })
    }

    fn command(&self, at: &str, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.folder).stdin(Stdio::null()).env("SIM_HOST", at);
        command.env("LD_PRELOAD", &self.preload).env("IBSIM_SOCKNAME", &self.name);
        command.env("OSM_TMP_DIR", ".").env("OSM_CACHE_DIR", ".");
        command
    }

    fn mads(&self, at: &str, arguments: &[&str]) -> Output {
        self.command(at, &self.mads).args(arguments).output().expect("the example runs")
    }

    /// Starts OpenSM at a node, and waits until the subnet is up.
    #[expect(clippy::disallowed_methods, reason = "programs live in the machine's time")]
    fn manager(&self, at: &str, opensm: &Path) -> Manager {
        let mut command = self.command(at, opensm);
        // It flushes its log after each line, and sweeps but once.
        command.args(["-e", "-f", "osm.log", "-d", "2", "-s", "0", "-t", "2000"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let manager = Manager(command.spawn().expect("OpenSM starts"));
        let end = Instant::now() + Duration::from_secs(60);
        let log = || fs::read_to_string(self.folder.join("osm.log")).unwrap_or_default();
        while !log().contains("SUBNET UP") {
            assert!(Instant::now() < end, "no subnet:\n{}", log());
            thread::sleep(Duration::from_millis(20));
        }
        manager
    }

    /// Serves three hosts at a switch for as long as `body` runs.
    #[expect(clippy::disallowed_methods, reason = "programs live in the machine's time")]
    fn serve(&self, body: impl FnOnce()) {
        let topology = Topology::generate("single:3", 1).expect("a topology");
        let mut fabric = Fabric::new(Net::new(Subnet::new(topology), 0, Wire::default()));
        fabric.program_sockets = Some(Sockets::bind(&self.name).expect("sockets"));
        let is_over = AtomicBool::new(false);
        let began = Instant::now();
        let now = || Time::START + began.elapsed();
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let longest = fabric.prepare_wait(now(), Duration::from_millis(5));
                    fabric.wait(longest, Vec::new()).expect("poll");
                    fabric.step(now()).expect("sockets");
                }
            });
            let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            is_over.store(true, Ordering::Relaxed);
            ran.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn lines(output: &Output) -> Vec<String> {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    // The library that takes the devices' place prints, too.
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().map(str::to_owned).collect()
}

/// Covers behavior that needs a subnet: answers to requests, the return of unanswered ones, and
/// subnet administration.
#[test]
fn our_own_fabric_answers_through_libibumad() {
    let test = "our_own_fabric_answers_through_libibumad";
    let Some(bench) = Bench::new(test) else { return };
    let Some(opensm) = pollux_referee::program(test, "opensm") else { return };
    let topology = Topology::generate("single:3", 1).expect("a topology");
    let guid = |name: &str| {
        let node = topology.nodes().iter().find(|node| node.name == name);
        node.expect("it is in the topology").guid
    };
    bench.serve(|| {
        let said = lines(&bench.mads("host2", &["ibsim0", "1", "3"]));
        let (here, there) = (guid("host2"), guid("host3"));
        let expected = [
            format!("here: CHANNEL_ADAPTER {here}"),
            format!("there: CHANNEL_ADAPTER {there}"),
            "subnet manager here: false, true, false".to_owned(),
            "at 49151: nobody".to_owned(),
            "LID 0, subnet manager at 0".to_owned(),
        ];
        assert_eq!(said, expected);

        let manager = bench.manager("host1", &opensm);
        let said = lines(&bench.mads("host2", &["ibsim0:1"]));
        assert_eq!(said[4..], [format!("record: {here} host2")], "{said:#?}");
        drop(manager);

        let output = bench.mads("host2", &["no_such_0"]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains("there is no such adapter; there are ibsim0"), "{errors}");
    });
}
