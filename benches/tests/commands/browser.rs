//! Pages in headless Chromium: nothing fails, every plot shows something, and it is readable on a
//! wide screen and on a narrow one.

use crate::programs::Folder;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

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

/// Opens a page with so many plots.
pub fn check(html: &str, plots: usize) {
    assert_eq!(html.matches("<svg ").count(), plots);
    if !Path::new(BROWSER).exists() {
        println!("SKIP: there is no {BROWSER}; run scripts/host-setup --pages");
        return;
    }
    let folder = Folder::new();
    fs::write(folder.path("page.html"), html.replace("</body>", PROBE)).expect("it is written");
    let mut grounds = Vec::new();
    for (width, is_dark) in [(1280, false), (400, false), (1280, true)] {
        let found = open(&folder.0, width, is_dark);
        assert_eq!(found["width"].as_u64(), Some(width.into()), "{found}");
        assert_eq!(found["overflow"].as_i64(), Some(0), "{found}");
        grounds.push(found["background"].clone());
        let drawn = found["plots"].as_array().expect("plots");
        assert_eq!(drawn.len(), plots, "{found}");
        for plot in drawn {
            let of = |key: &str| plot[key].as_f64().expect("a number");
            assert!(of("marks") >= 2.0 && of("outside") == 0.0 && of("cut") == 0.0, "{found}");
            assert!(of("text_height") >= 11.0, "at {width}: {found}");
        }
    }
    assert_eq!(grounds[0], grounds[1]);
    assert_ne!(grounds[0], grounds[2], "a dark page has another ground");
}

/// What the browser finds in the page of a folder at a width; nothing may go wrong there.
fn open(folder: &Path, width: u32, is_dark: bool) -> Value {
    let frame = folder.join("frame.html");
    fs::write(&frame, FRAME.replace("WIDTH", &width.to_string())).expect("it is written");
    let mut browser = Command::new(BROWSER);
    browser.args(["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]);
    browser.arg(format!("--user-data-dir={}", folder.join("profile").display()));
    browser.arg("--window-size=1400,1000");
    browser.args(is_dark.then_some("--blink-settings=preferredColorScheme=0"));
    browser.args(["--virtual-time-budget=5000", "--dump-dom"]).arg(frame);
    let output = browser.output().expect("the browser runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains(":CONSOLE"), "{said}");
    let dom = String::from_utf8(output.stdout).expect("it is text");
    let found =
        dom.split_once("<pre id=\"found\">").and_then(|(_, rest)| rest.split_once("</pre>"));
    serde_json::from_str(found.expect("the probe has run").0).expect("it is JSON")
}
