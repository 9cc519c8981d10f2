//! The page of a run in a browser: nothing fails, every plot shows something, and it is readable on
//! a wide screen and on a narrow one.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PERF: &str = env!("CARGO_BIN_EXE_pollux-perf");
const BROWSER: &str = "/usr/bin/chromium";

/// Tells the frame around the page what it shows.
const PROBE: &str = "<script>
const page = document.documentElement;
const plots = [...document.querySelectorAll('svg')].map(svg => {
  const box = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll('text')].map(text => text.getBoundingClientRect());
  const drawn = [...svg.querySelectorAll('polyline, circle')];
  const marks = drawn.map(it => it.getBoundingClientRect());
  const inside = it => it.left >= box.left - 1 && it.right <= box.right + 1
    && it.top >= box.top - 1 && it.bottom <= box.bottom + 1;
  return {
    marks: marks.filter(inside).length, outside: marks.length - marks.filter(inside).length,
    cut: texts.filter(it => !inside(it)).length,
    text_height: Math.min(...texts.map(it => it.height)),
  };
});
parent.postMessage(JSON.stringify({
  width: innerWidth, overflow: page.scrollWidth - page.clientWidth,
  background: getComputedStyle(document.body).backgroundColor, plots,
}), '*');
</script></body>";

/// A frame as wide as the screen, since a window of the browser has at least 500 pixels.
const FRAME: &str = "<html style=\"color-scheme: light dark\"><script>
onmessage = told => document.getElementById('found').textContent = told.data;
</script><pre id=\"found\"></pre>
<iframe src=\"page.html\" width=\"WIDTH\" height=\"900\" style=\"border: 0\"></iframe>";

struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("pollux-page-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn perf(arguments: &[&str]) -> String {
    let output = Command::new(PERF).args(arguments).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("it is text")
}

/// What the browser finds in the page of a folder at a width; nothing may go wrong there.
fn open(folder: &Path, width: u32, dark: bool) -> Value {
    let frame = folder.join("frame.html");
    fs::write(&frame, FRAME.replace("WIDTH", &width.to_string())).expect("it is written");
    let mut browser = Command::new(BROWSER);
    browser.args(["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]);
    browser.arg(format!("--user-data-dir={}", folder.join("profile").display()));
    browser.arg("--window-size=1400,1000");
    browser.args(dark.then_some("--blink-settings=preferredColorScheme=0"));
    browser.args(["--virtual-time-budget=5000", "--dump-dom"]).arg(frame);
    let output = browser.output().expect("the browser runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains(":CONSOLE"), "{said}");
    let dom = String::from_utf8(output.stdout).expect("it is text");
    let found =
        dom.split_once("<pre id=\"found\">").and_then(|(_, rest)| rest.split_once("</pre>"));
    serde_json::from_str(found.expect("the probe has run").0).expect("it is JSON")
}

#[test]
fn every_plot_of_a_page_shows_something_on_wide_and_on_narrow_screens() {
    if !Path::new(BROWSER).exists() {
        println!("SKIP: there is no {BROWSER}; run scripts/host-setup --pages");
        return;
    }
    let folder = Folder::new();
    let [campaign, run, page] =
        ["campaign.toml", "run.json", "page.html"].map(|name| folder.0.join(name));
    let text = "duration = 0.01\ncores = [0, 0]\n[[measure]]\nwhat = [\"lat\", \"connect\"]\n\
                layer = [\"tcp\"]\nsockets = [\"kernel\"]\nsize = [64, 1000, 20000]\n";
    fs::write(&campaign, text).expect("it is written");
    let path = |path: &Path| path.display().to_string();
    perf(&["campaign", &path(&campaign), "--into", &path(&run)]);
    let html = perf(&["report", &path(&run)]);
    assert_eq!(html.matches("<svg ").count(), 11, "two sweeps, three percentiles, six of rounds");
    fs::write(&page, html.replace("</body>", PROBE)).expect("it is written");
    let mut grounds = Vec::new();
    for (width, dark) in [(1280, false), (400, false), (1280, true)] {
        let found = open(&folder.0, width, dark);
        assert_eq!(found["width"].as_u64(), Some(width.into()), "{found}");
        assert_eq!(found["overflow"].as_i64(), Some(0), "{found}");
        grounds.push(found["background"].clone());
        let plots = found["plots"].as_array().expect("plots");
        assert_eq!(plots.len(), 11, "{found}");
        for plot in plots {
            let of = |key: &str| plot[key].as_f64().expect("a number");
            assert!(of("marks") >= 2.0 && of("outside") == 0.0 && of("cut") == 0.0, "{found}");
            assert!(of("text_height") >= 11.0, "at {width}: {found}");
        }
    }
    assert_eq!(grounds[0], grounds[1]);
    assert_ne!(grounds[0], grounds[2], "a dark page has another ground");
}
