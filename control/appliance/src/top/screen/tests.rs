//! Draws screens of invented samples into memory, and compares them with files, which
//! `POLLUX_SCHEMA=write cargo test --package pollux-appliance screens` writes.

use super::*;
use crate::top::sample::Sample;
use pollux_node::admin::rows::{DropCount, InterfaceStatus, RouteStatus, WorkerStatus};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use std::path::Path;
use std::time::{Duration, Instant};

fn interface(name: &str, state: &str, received: u64) -> InterfaceStatus {
    let is_up = state == "up";
    InterfaceStatus {
        interface: name.into(),
        device: "soft:fabric.sock@host1".into(),
        state: state.into(),
        why: if is_up { "the broadcast group is joined" } else { "the port carries no traffic" }
            .into(),
        waits_for: (!is_up).then(|| "a link".into()),
        mtu: is_up.then_some(2044),
        sent: Some(received / 2),
        received: Some(received),
        bytes_sent: Some(30 * received),
        bytes_received: Some(1000 * received),
        ..InterfaceStatus::default()
    }
}

fn worker(number: usize, busy_ms: u64, packets: u64) -> WorkerStatus {
    WorkerStatus {
        worker: number,
        core: Some(number + 2),
        idle: "adaptive".into(),
        interfaces: vec!["ib0".into(), "ib1".into()],
        breaths: 4 * packets,
        busy_breaths: packets / 8,
        packets,
        sleeps: 10,
        asleep_ms: 0,
        busy_ms,
        running_ms: 2 * packets / 1000,
        ns_per_packet: None,
        batch_size: None,
        idle_percent: None,
        memory: String::new(),
    }
}

fn route(to: &str, source: &str, is_active: bool) -> RouteStatus {
    serde_json::from_value(serde_json::json!({
        "domain": "default", "to": to, "source": source, "kind": "unicast", "via": [], "seconds": 0,
        "metric": null, "unused": null, "next_domain": null,
        "is_active": is_active
    }))
    .expect("a row")
}

fn dropped(of: &str, why: &str, count: u64) -> DropCount {
    DropCount {
        interface: "ib0".into(),
        of: of.into(),
        why: why.into(),
        count,
        usual: of == "refused",
    }
}

/// A sample after this many thousands of packets; each thousand takes two seconds.
fn sample(at: Instant, thousands: u64) -> Sample {
    let packets = 1000 * thousands;
    Sample {
        at: at + Duration::from_secs(2 * thousands),
        interfaces: vec![interface("ib0", "up", packets), interface("ib1", "down", 0)],
        workers: vec![
            worker(0, thousands, 500 * packets),
            worker(1, 980 * thousands, 500 * packets),
        ],
        drops: vec![
            dropped("arp", "malformed", 7),
            dropped("received", "runt", 0),
            dropped("forward", "no_route", 24 * thousands),
            dropped("refused", "pending", 3 * thousands),
        ],
        neighbors: Vec::new(),
        connections: Vec::new(),
        routes: vec![
            route("10.0.0.0/24", "connected", true),
            route("fd00::/64", "connected", true),
            route("10.1.0.0/16", "kernel, bgp", false),
        ],
    }
}

/// A screen with the rates between two samples.
fn screen(view: View) -> Screen {
    #[expect(clippy::disallowed_methods, reason = "only the time between the two counts")]
    let at = Instant::now();
    let mut screen = Screen::new(view, 1000, true);
    screen.change = Some(SampleChange::between(Some(&sample(at, 1)), sample(at, 2)));
    screen
}

fn drawn(screen: &Screen, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("memory");
    terminal.draw(|frame| screen.draw(frame)).expect("memory");
    terminal.backend().buffer().clone()
}

fn text(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width);
    let lines = buffer.content.chunks(width).map(|line| {
        let line: String = line.iter().map(|cell| cell.symbol()).collect();
        line.trim_end().to_owned() + "\n"
    });
    lines.collect()
}

#[expect(clippy::disallowed_methods, reason = "the environment asks for new files")]
fn compare(name: &str, screen: &Screen) {
    for (width, height) in [(80, 24), (200, 50)] {
        let drawn = text(&drawn(screen, width, height));
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top/screen/snapshots");
        let path = folder.join(format!("{name}-{width}x{height}.txt"));
        if std::env::var_os("POLLUX_SCHEMA").is_some_and(|what| what == "write") {
            std::fs::create_dir_all(&folder).expect("the work tree can be written");
            std::fs::write(&path, &drawn).expect("the work tree can be written");
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == drawn, "{} has another screen than:\n{drawn}", path.display());
    }
}

#[test]
fn screens_are_those_of_the_files() {
    for view in [View::Overview, View::Interfaces, View::Workers, View::Routes, View::Drops] {
        compare(&view.name(), &screen(view));
    }
    let mut help = screen(View::Workers);
    (help.shows_help, help.is_paused) = (true, true);
    compare("help", &help);
    let mut lost = screen(View::Drops);
    lost.failure = Some("no node or fabric at a.sock".into());
    (lost.filter, lost.edits_filter, lost.sort) = ("no_".into(), true, Some(4));
    compare("filter", &lost);
    compare("empty", &Screen::new(View::Neighbors, 1000, true));
}

#[test]
fn no_color_means_none() {
    let mut screen = screen(View::Overview);
    let has_color = |buffer: &Buffer| buffer.content.iter().any(|cell| cell.fg != Color::Reset);
    assert!(has_color(&drawn(&screen, 80, 24)));
    screen.has_colors = false;
    assert!(!has_color(&drawn(&screen, 80, 24)));
}

#[test]
fn any_size_is_drawn() {
    for &view in View::value_variants() {
        let mut screen = screen(view);
        for (width, height) in [(1, 1), (3, 2), (20, 4), (500, 3)] {
            screen.shows_help = !screen.shows_help;
            drawn(&screen, width, height);
        }
    }
}
