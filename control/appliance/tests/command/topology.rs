//! `pollux show topology`: of a running fabric and of plans, in all forms, and its page in a
//! browser.

use crate::nodes::{Node, interface};
use crate::running::{Running, folder, output_of};
use crate::schema::Schema;
use pollux_referee::browser::{Browser, NARROW, WIDE, WIDE_AND_DARK};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;

const RACK: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../dataplane/fabric/tests/umad/rack.ibnetdiscover");

fn plan(arguments: &[&str]) -> String {
    let (is_ok, printed) = output_of(&[&["show", "topology"], arguments].concat());
    assert!(is_ok, "{printed}");
    printed
}

/// The text of the first element that has these words before it.
fn title_of<'a>(svg: &'a str, class: &str, name: &str) -> &'a str {
    let elements = svg.split("<g class=\"").filter(|element| element.starts_with(class));
    let titles = elements.filter_map(|element| {
        element.split_once("<title>").and_then(|(_, rest)| rest.split_once("</title>"))
    });
    let mut titles = titles.map(|(title, _)| title).filter(|title| title.starts_with(name));
    titles.next().unwrap_or_else(|| panic!("no {class} {name} in {svg}"))
}

#[test]
fn a_running_fabric_is_shown_in_every_form_and_changes_of_it_are_seen() {
    let fabric = Running::new("topology", &["--topology", "single:3"]);
    let is_up = |text: &str| text.contains("all at 4xEDR; all active");
    let text = fabric.until_it(&["show", "topology"], "link that is active", is_up);
    for words in ["3 hosts, 1 switch, 3 links", "switch1: switch, level 1, LID ", "host3:1", "UTC"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    let svg = || fabric.until(&["show", "topology", "--svg"], "</svg>");
    let before = svg();
    assert_eq!(before.matches("<g class=\"link").count(), 3, "{before}");
    assert_eq!(before.matches("class=\"w3 active\"").count(), 3 + 1, "{before}");
    let link = title_of(&before, "link", "switch1:2 to host2:1, 4xEDR");
    assert!(link.contains("host2:1: ACTIVE, sent ") && link.contains("0 errors"), "{link}");

    assert!(fabric.ask(&["fault", "add", "host2:1/down"]).0);
    let is_seen = |svg: &str| svg.contains("2 active, 1 down");
    let down = fabric.until_it(&["show", "topology", "--svg"], "link that is down", is_seen);
    assert!(title_of(&down, "link", "switch1:2").contains("host2:1: DOWN"), "{down}");
    assert!(title_of(&down, "node host down", "host2").contains("DOWN 4xEDR"), "{down}");

    assert!(!before.contains("open in process"), "{before}");
    let node = Node::with(&fabric, 1, &interface(&fabric, 1, "ib0", "10.0.0"));
    node.come_up();
    let open = svg();
    let host = title_of(&open, "node host active open", "host1");
    assert!(host.contains("open in process ") && !host.contains("sent 0 packets"), "{host}");

    let html = fabric.until(&["show", "topology", "--html"], "</html>");
    assert!(
        html.contains("<td>switch1:2</td><td>host2:1</td><td>4xEDR</td><td>DOWN</td>"),
        "{html}"
    );
    let json = fabric.until(&["show", "topology", "--json"], "]");
    let rows: Value = serde_json::from_str(&json).expect("it is JSON");
    Schema::new().check("topology", &rows);
    let cable = &rows[0]["cables"][0];
    assert_eq!((&cable["state"], &cable["peer"]), (&"ACTIVE".into(), &"host1:1".into()));
    assert!(cable["counters"]["bytes_received"].as_u64() > Some(0), "{cable}");
}

#[test]
fn a_wire_is_a_link_to_an_external_node() {
    let wire = "switch1:9=udp:127.0.0.1:0,any";
    let fabric = Running::new("topology-wire", &["--topology", "single:1", "--wire", wire]);
    let svg = fabric.until(&["show", "topology", "--svg"], "</svg>");
    assert!(title_of(&svg, "node external", "wire (").ends_with(" at switch1:9"), "{svg}");
    let text = fabric.until(&["show", "topology"], "wire (");
    assert!(text.contains("1 host, 1 switch, 2 links"), "{text}");
}

#[test]
fn a_dump_of_a_cluster_is_drawn_without_a_fabric() {
    let text = plan(&[RACK]);
    assert!(text.contains("leaf1: switch, level 1, LID 1, GUID 0x7cfe900300a10010"), "{text}");
    assert!(text.contains("  1     4xEDR  db1:1     4\n"), "{text}");
    assert!(!text.contains("state"), "{text}");
    let svg = plan(&[RACK, "--svg"]);
    for name in ["leaf1", "leaf2", "spine1", "db1", "web2", "12xDDR", "4xHDR"] {
        assert!(svg.contains(&format!(">{name}</text>")), "{name}: {svg}");
    }
    assert!(title_of(&svg, "node host", "db1").contains("LID 4"), "{svg}");
    assert_eq!(svg, plan(&[RACK, "--svg"]));
    let rows: Value = serde_json::from_str(&plan(&[RACK, "--json"])).expect("it is JSON");
    Schema::new().check("topology", &rows);
    assert_eq!(rows[0]["cables"][0]["counters"], Value::Null);
}

/// 1,024 hosts and 320 switches in three levels.
#[test]
fn a_fat_tree_of_a_thousand_hosts_is_drawn_with_all_of_them() {
    let html = plan(&["fat-tree:16", "--html"]);
    assert_eq!(html.matches("<g class=\"node host planned cell\">").count(), 1024);
    assert_eq!(html.matches("<g class=\"node switch\">").count(), 320);
    assert_eq!(html.matches("<g class=\"link").count(), 2048);
    assert!(html.len() < 3_000_000, "{} bytes", html.len());
}

#[test]
fn a_wrong_question_about_a_topology_is_answered_with_advice() {
    let folder = folder("topology-wrong");
    fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("dump");
    fs::write(&file, "Switch 8 \"S-1\" # \"leaf\"\n[1] \"H-1\"\n").expect("a file");
    let file = file.display().to_string();
    for (arguments, advice) in [
        (&["topology"][..], "--socket <PATH>"),
        (&["topology", "rings:3"], "no such topology; take single:N"),
        (&["topology", &file], "dump:2: "),
        (&["topology", "/nonexistent/dump"], "no file of this name"),
        (&["topology", "ring:3", "--svg", "--html"], "cannot be used with"),
        (&["topology", "ring:3", "--socket", "x"], "cannot be used with"),
        (&["nodes", "ring:3"], "only `pollux show topology` has"),
        (&["nodes", "--socket", "x", "--svg"], "only `pollux show topology` has"),
    ] {
        let (is_ok, output) = output_of(&[&["show"], arguments].concat());
        assert!(!is_ok && output.contains(advice), "{arguments:?}: {output}");
    }
    let _ = fs::remove_dir_all(&folder);
}

#[test]
fn the_socket_of_a_node_is_refused_with_the_one_to_name() {
    let fabric = Running::new("topology-node", &["--topology", "single:1"]);
    let node = Node::start(&fabric, 1, "ud");
    let (is_ok, output) = node.ask(&["show", "topology"]);
    assert!(!is_ok && output.contains("name the socket of a `pollux fabric`"), "{output}");
}

/// Tells the frame around the page what it shows.
const PROBE: &str = "
const page = document.documentElement;
const picture = document.querySelector('.picture svg');
const box = picture.getBoundingClientRect();
const inside = it => it.left >= box.left - 1 && it.right <= box.right + 1
  && it.top >= box.top - 1 && it.bottom <= box.bottom + 1;
const seen = it => it.width > 2 && it.height > 2;
const areas = which => [...picture.querySelectorAll(which)].map(it => it.getBoundingClientRect());
const nodes = areas('.node .box'), texts = areas('text');
const names = [...picture.querySelectorAll('.node')].filter(node => node.querySelector('text'));
const cut = names.filter(node => {
  const around = node.querySelector('.box').getBoundingClientRect();
  return [...node.querySelectorAll('text')].map(text => text.getBoundingClientRect()).some(text =>
    text.left < around.left || text.right > around.right
    || text.top < around.top - 1 || text.bottom > around.bottom + 1);
});
parent.postMessage(JSON.stringify({
  width: innerWidth, overflow: page.scrollWidth - page.clientWidth,
  background: getComputedStyle(document.body).backgroundColor,
  switch: getComputedStyle(picture.querySelector('.switch .box')).fill,
  nodes: nodes.filter(it => inside(it) && seen(it)).length,
  outside: nodes.filter(it => !inside(it)).length + texts.filter(it => !inside(it)).length,
  cut: cut.map(node => node.textContent),
}), '*');";

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn all_nodes_of_a_page_are_inside_of_its_picture_on_wide_and_on_narrow_screens() {
    let folder = Folder(folder("topology-browser"));
    fs::create_dir_all(&folder.0).expect("a folder");
    let Some(browser) = Browser::find(&folder.0) else { return };
    let fabric = Running::new("topology-page", &["--topology", "fat-tree:4"]);
    let running = fabric.until(&["show", "topology", "--html"], "</html>");
    let pages = [
        (running, 36),
        (plan(&["ring:5", "--html"]), 10),
        (plan(&[RACK, "--html"]), 7),
        (plan(&["leaf-spine:63x16x16", "--html"]), 1087),
    ];
    for (page, nodes) in pages {
        let mut colors = Vec::new();
        for screen in [WIDE, NARROW, WIDE_AND_DARK] {
            let found = browser.probe(&page, PROBE, screen);
            let found: Value = serde_json::from_str(&found).expect("it is JSON");
            assert_eq!(found["width"].as_u64(), Some(screen.width.into()), "{found}");
            assert_eq!(found["overflow"].as_i64(), Some(0), "{found}");
            assert_eq!(found["nodes"].as_u64(), Some(nodes), "{found}");
            assert_eq!(found["outside"].as_u64(), Some(0), "{found}");
            assert_eq!(found["cut"], Value::Array(Vec::new()), "{found}");
            colors.push([found["background"].clone(), found["switch"].clone()]);
        }
        assert_eq!(colors[0], colors[1]);
        let is_other = |nth: usize| colors[0][nth] != colors[2][nth];
        assert!(is_other(0) && is_other(1), "a dark page has other colors: {colors:?}");
    }
}
