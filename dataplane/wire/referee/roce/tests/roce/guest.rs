//! The other end: Soft-RoCE, in the virtual machine of `scripts/rxe-vm`.

use crate::peer::Peer;
use pollux_conformance::end::line::{Command, Reply};
use pollux_referee::soft_roce;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{self, Child};
use std::time::{Duration, Instant};

/// How long the machine may take to boot, in emulation and beside other tests.
const BOOT_TIMEOUT: Duration = Duration::from_secs(120);

/// A multicast packet must pass the guest's IPv6 before rxe sees it, and rxe joins nothing there.
const JOIN: &str = "ip address add ff02::1234/128 dev net2 autojoin";

/// A running machine, and the serial port for the commands of its end.
pub struct Machine {
    child: Child,
    control: UnixStream,
    line: Vec<u8>,
    folder: PathBuf,
}

impl Machine {
    /// Boots a machine; returns it and its cable. `None` if something is missing, which is printed.
    pub fn boot(test: &str) -> Option<(Self, UnixStream)> {
        let built = soft_roce::built(test, "pollux-ibverbs", &["--example", "rxe-guest"])?;
        let program = built.join("examples/rxe-guest");
        let folder = std::env::temp_dir().join(format!("pollux-rxe-{}", process::id()));
        std::fs::create_dir_all(&folder).expect("there is room for two sockets");
        let listen = |name| UnixListener::bind(folder.join(name)).expect("a socket can be made");
        let listeners = ["cable", "control"].map(listen);
        let mut child = soft_roce::machine()
            .arg("--program")
            .arg(program)
            .args(["--timeout", "400", "--cable"])
            .arg(folder.join("cable"))
            .arg("--control")
            .arg(folder.join("control"))
            .arg(format!("{JOIN} && rxe-guest peer rxe2 /dev/ttyS3"))
            .spawn()
            .expect("scripts/rxe-vm runs");
        let [cable, control] = listeners.map(|listener| accept(&listener, &mut child));
        let mut machine = Self { child, control, line: Vec::new(), folder };
        let ready = machine.wait_for_line();
        assert_eq!(ready, "ready", "what the guest said first");
        Some((machine, cable))
    }

    /// Waits for the next line of the guest.
    fn next_line(&mut self) -> Option<String> {
        let mut room = [0; 4096];
        match self.control.read(&mut room) {
            Ok(0) => panic!("the machine has ended"),
            Ok(bytes) => self.line.extend_from_slice(&room[..bytes]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        let end = self.line.iter().position(|&byte| byte == b'\n')?;
        let line: Vec<u8> = self.line.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line).trim().to_owned())
    }

    #[expect(clippy::disallowed_methods, reason = "the guest boots in time of its own")]
    fn wait_for_line(&mut self) -> String {
        let end = Instant::now() + BOOT_TIMEOUT;
        loop {
            if let Some(line) = self.next_line() {
                return line;
            }
            assert!(Instant::now() < end, "the guest says nothing");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Peer for Machine {
    fn begin(&mut self, command: Command) {
        let line = format!("{}\n", command.line());
        self.control.write_all(line.as_bytes()).expect("a line fits the serial port's socket");
    }

    fn step(&mut self) -> Option<Result<Reply, String>> {
        let line = self.next_line()?;
        Some(match line.strip_prefix("failed ") {
            Some(reason) => Err(reason.to_owned()),
            None => Reply::parse(&line).ok_or(format!("the guest said {line:?}")),
        })
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The script ends its emulator when it is asked to end, and not when it is killed.
        let id = self.child.id().to_string();
        let _ = process::Command::new("kill").arg(id).status();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Waits for the emulator to connect while it lives.
#[expect(clippy::disallowed_methods, reason = "the emulator starts in time of its own")]
fn accept(listener: &UnixListener, child: &mut Child) -> UnixStream {
    listener.set_nonblocking(true).expect("a socket can be told not to block");
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true).expect("a socket can be told not to block");
                return stream;
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        let ended = child.try_wait().expect("the child is ours");
        assert!(ended.is_none(), "scripts/rxe-vm has ended: {ended:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
