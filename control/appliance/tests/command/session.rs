//! A routing daemon whose node is killed and started again: its session outlives that, since a
//! service manager keeps the shadow that it speaks by.

use crate::namespace::Namespace;
use crate::running::{Ending, Running, TIMEOUT};
use crate::service_manager::ServiceManager;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// BIRD in a namespace.
struct Bird {
    _child: Ending,
    control: PathBuf,
}

impl Bird {
    fn start(test: &str, namespace: &Namespace, folder: &Path, protocols: &str) -> Option<Self> {
        let program = pollux_referee::program_of(test, "bird", "--referees")?;
        let (config, control) = (folder.join("bird.conf"), folder.join("bird.ctl"));
        let text = format!("log stderr all;\nprotocol device {{ scan time 1; }}\n{protocols}");
        std::fs::write(&config, text).expect("it is ours");
        let mut command = namespace.command(&program.display().to_string());
        command.args(["-f", "-c"]).arg(&config).arg("-s").arg(&control).stderr(Stdio::null());
        Some(Self { _child: Ending(command.spawn().expect("it starts")), control })
    }

    fn say(&self, words: &str) -> String {
        let mut client = Command::new("birdc");
        let client = client.arg("-s").arg(&self.control).args(words.split(' '));
        let output = client.output().expect("birdc is installed with bird");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Waits until it says this.
    fn until(&self, question: &str, words: &str) -> String {
        let begun = Instant::now();
        loop {
            let printed = self.say(question);
            if printed.contains(words) {
                return printed;
            }
            assert!(begun.elapsed() < TIMEOUT, "no {words:?} of {question}: {printed}");
        }
    }
}

const LEFT: &str = "router id 0.0.0.1;\nprotocol kernel { ipv4 { export all; }; }\n\
    protocol bgp peer { local 10.7.0.1 as 65001; neighbor 10.7.0.2 as 65002; \
    ipv4 { import all; export none; }; connect delay time 1; }\n";
const RIGHT: &str = "router id 0.0.0.2;\nprotocol static { ipv4; route 10.8.0.0/16 blackhole; }\n\
    protocol static more { disabled; ipv4; route 10.9.0.0/16 blackhole; }\n\
    protocol bgp peer { local 10.7.0.2 as 65002; neighbor 10.7.0.1 as 65001; \
    ipv4 { import none; export all; next hop self; }; connect delay time 1; }\n";

#[test]
fn a_session_of_bgp_outlives_its_killed_node() {
    let test = "a_session_of_bgp_outlives_its_killed_node";
    let Some(left) = Namespace::make(test) else { return };
    let Some(right) = Namespace::make(test) else { return };
    let fabric = Running::new("session-fabric", &["--topology", "single:2"]);
    let mut manager = ServiceManager::new("session");
    let config = |host: u32| {
        format!(
            "[interface.ib0]\ndevice = {:?}\naddress = [\"10.7.0.{host}/24\"]\nshadow = \"ib0\"\n\
             [router]\nkernel_table = 254\n",
            fabric.port(host)
        )
    };
    std::fs::write(manager.folder.join("a.toml"), config(1)).expect("it is ours");
    std::fs::write(fabric.path("b.toml"), config(2)).expect("it is ours");
    let start = |manager: &ServiceManager| {
        let program = [env!("CARGO_BIN_EXE_pollux"), "run", "a.toml", "--socket", "a.sock"];
        manager.start(&["ip", "netns", "exec", left.name()], &program, None)
    };
    let node = start(&manager);
    let mut peer = right.command(env!("CARGO_BIN_EXE_pollux"));
    let peer = peer.args(["run", &fabric.path("b.toml"), "--socket", &fabric.path("b.sock")]);
    let _peer = Ending(peer.stdout(Stdio::null()).spawn().expect("it starts"));
    manager.until("READY=1");
    let Some(daemon) = Bird::start(test, &left, &manager.folder, LEFT) else { return };
    let Some(other) = Bird::start(test, &right, &fabric.folder, RIGHT) else { return };
    daemon.until("show protocols peer", "Established");
    daemon.until("show route", "10.8.0.0/16");
    let established = since(&daemon.say("show protocols peer"));

    drop(node);
    let begun = Instant::now();
    let _node = start(&manager);
    let mut ping = left.command("ping");
    let ping = ping.args(["-c", "1", "-W", "1", "10.7.0.2"]).stdout(Stdio::null());
    while !ping.status().expect("ping runs").success() {
        assert!(begun.elapsed() < TIMEOUT, "no packet passes");
    }
    println!("the first packet passes {:?} after the start", begun.elapsed());
    other.say("enable more");
    daemon.until("show route", "10.9.0.0/16");
    let session = daemon.say("show protocols peer");
    assert!(session.contains("Established"), "{session}");
    assert!((since(&session) - established).abs() < 0.1, "{session}");
    let routes = left.json("route show");
    assert!(routes.iter().any(|route| route["dst"] == "10.9.0.0/16"), "{routes:?}");
}

/// The time of day since which a session is as it is, in seconds. BIRD counts back from now, so its
/// last digit varies.
fn since(session: &str) -> f64 {
    let mut words = session.split_whitespace();
    let time = words.find(|word| word.matches(':').count() == 2).expect("a time of day");
    let parts = time.split(':').map(|part| part.parse::<f64>().expect("a number"));
    parts.fold(0.0, |seconds, part| seconds * 60.0 + part)
}
