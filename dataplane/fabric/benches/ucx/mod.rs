//! UCX on the same cores, by its own `ucx_perftest` (`scripts/host-setup --peers`).

use std::process::{Command, Stdio};

/// Microseconds a message, as `ucx_perftest` counts them; none if it is not there.
pub fn ucx(test: &str, octets: u32, count: u32) -> Option<f64> {
    const PORT: &str = "13717";
    let start = |core: &str, to: &[&str]| {
        let mut command = Command::new("taskset");
        command.args(["-c", core, "ucx_perftest", "-p", PORT, "-t", test]);
        command.args(["-s", &octets.to_string(), "-n", &count.to_string(), "-f"]).args(to);
        command.env("UCX_TLS", "posix,self").stdin(Stdio::null()).stderr(Stdio::null());
        command.stdout(Stdio::piped()).spawn().ok()
    };
    let mut server = start("0", &[])?;
    // It says nothing when it listens.
    std::thread::sleep(std::time::Duration::from_millis(400));
    let output = start("1", &["127.0.0.1"]).and_then(|client| client.wait_with_output().ok());
    let _ = server.kill();
    let _ = server.wait();
    let output = String::from_utf8(output?.stdout).ok()?;
    // The last line: iterations, median, average, overall ...
    output.lines().last()?.split_whitespace().nth(3)?.parse().ok()
}
