//! The server for other hosts, by the commands.

use crate::programs::{PERF, Server};
use pollux_node::fabric::Embedded;
use pollux_perf::plan::{Layer, MeasuredTransport, Plan, ProgramSockets, What};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

#[test]
fn a_server_survives_its_clients_and_serves_them_in_turn() {
    let server = Server::start(&[]);
    let lat = "lat --layer tcp --sockets kernel --size 100";
    let connect = || TcpStream::connect(&server.at).expect("it listens");
    // One hangs up at once, one speaks another protocol, one says hello and hangs up.
    drop(connect());
    connect().write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it is sent");
    let mut stream = connect();
    let mut hello = String::new();
    BufReader::new(stream.try_clone().expect("a socket")).read_line(&mut hello).expect("a line");
    assert!(hello.contains("\"program\":\"pollux-perf\""), "{hello}");
    stream.write_all(hello.as_bytes()).expect("it is sent");
    drop(stream);
    for _ in 0..2 {
        let report = server.measure(lat).expect("it is served");
        let samples = report["rows"][0]["source"]["measured"]["outcomes"][0]["outcome"]["latency"]
            ["samples"]
            .as_u64();
        assert!(samples.is_some_and(|samples| samples > 0), "{report}");
        assert!(report["server_environment"]["cpu"].is_string(), "{report}");
    }
    // Two clients at once: one has to wait.
    std::thread::scope(|scope| {
        let measure = || server.measure(lat).is_ok();
        let both = [scope.spawn(measure), scope.spawn(measure)];
        assert!(both.map(|one| one.join().expect("it does not panic")).iter().all(|it| *it));
    });
}

/// It was to connect to the kernel's sockets of the server, which accept for ever.
#[test]
fn the_end_of_a_client_in_the_middle_is_the_end_of_its_measurement() {
    let server = Server::start(&[]);
    let mut stream = TcpStream::connect(&server.at).expect("it listens");
    let mut lines = BufReader::new(stream.try_clone().expect("a socket")).lines();
    let mut line = || lines.next().expect("it goes on").expect("a line");
    let hello = line();
    let program = Some(ProgramSockets::Kernel);
    let plan = Plan::new(What::Connect, Layer::Tcp, MeasuredTransport::Rc, 64);
    let plan = serde_json::to_string(&Plan { program, ..plan }).expect("it is JSON");
    writeln!(stream, "{hello}\n{plan}").expect("it is sent");
    assert_eq!(line(), "{\"Ok\":null}");
    assert!(line().contains("127.0.0.1:"), "where its sockets listen");
    drop((lines, stream));
    assert!(server.measure("lat --layer tcp --sockets kernel").is_ok(), "the next one is served");
}

#[test]
fn a_client_of_another_version_is_told_what_to_do() {
    let server = Server::start(&[]);
    let mut stream = TcpStream::connect(&server.at).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
    let mut hello = String::new();
    BufReader::new(stream.try_clone().expect("a socket")).read_line(&mut hello).expect("a line");
    let other = hello.replace("\"protocol\":3", "\"protocol\":9");
    assert_ne!(other, hello);
    stream.write_all(other.as_bytes()).expect("it is sent");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("it hangs up");
    let mut server = server;
    let mut said = String::new();
    while !said.contains("run the same version on both hosts") {
        assert!(server.said.read_line(&mut said).expect("it goes on") > 0, "{said}");
    }
}

#[test]
fn what_a_server_cannot_measure_is_refused_with_its_reason() {
    let server = Server::start(&[]);
    let refusal = server.measure("lat --layer tcp --sockets pinned --device soft:/x@host1");
    let refusal = refusal.expect_err("it has no device");
    assert!(refusal.contains("the server was started without --device"), "{refusal}");
    let at = server.at.clone();
    drop(server);
    let lat = ["lat", "--layer", "tcp", "--sockets", "kernel", "--connect", &at];
    let output = Command::new(PERF).args(lat).output().expect("it runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("run pollux-perf serve --listen"), "{error}");
}

#[test]
fn every_layer_is_measured_between_two_programs_that_meet_at_a_fabric() {
    let fabric = Embedded::start("single:2").expect("a fabric");
    let [near, far] = ["host1", "host2"].map(|host| fabric.port(host));
    let server = Server::start(&["--device", &far]);
    for what in [
        "lat",
        "lat --transport ud",
        "bw --size 100000",
        "lat --layer udp",
        "rate --layer udp",
        "bw --layer tcp --size 100000",
        "connect --layer tcp --sockets pinned --size 100",
    ] {
        let report = server.measure(&format!("{what} --device {near}"));
        let report = report.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(
            report["rows"][0]["source"]["measured"]["outcomes"][0].is_object(),
            "{what}: {report}"
        );
    }
}
