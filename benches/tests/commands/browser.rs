//! Pages in headless Chromium: nothing fails, every plot shows something, and it is readable on a
//! wide screen and on a narrow one.

use crate::programs::Folder;
use pollux_referee::browser::{Browser, NARROW, WIDE, WIDE_AND_DARK};
use serde_json::Value;

/// Tells the frame around the page what it shows.
const PROBE: &str = "
const page = document.documentElement;
const plots = [...document.querySelectorAll('svg')].map(svg => {
  const box = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll('text')].map(text => text.getBoundingClientRect());
  const drawn = [...svg.querySelectorAll('polyline, circle')];
  const marks = drawn.map(it => it.getBoundingClientRect()).filter(it => it.width > 1);
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
}), '*');";

/// Opens a page with so many plots.
pub fn check(html: &str, plots: usize) {
    assert_eq!(html.matches("<svg ").count(), plots);
    let folder = Folder::new();
    let Some(browser) = Browser::find(&folder.0) else { return };
    let mut grounds = Vec::new();
    for screen in [WIDE, NARROW, WIDE_AND_DARK] {
        let width = screen.width;
        let found = browser.probe(html, PROBE, screen);
        let found: Value = serde_json::from_str(&found).expect("it is JSON");
        assert_eq!(found["width"].as_u64(), Some(width.into()), "{found}");
        assert_eq!(found["overflow"].as_i64(), Some(0), "{found}");
        grounds.push(found["background"].clone());
        let drawn = found["plots"].as_array().expect("plots");
        assert_eq!(drawn.len(), plots, "{found}");
        for plot in drawn {
            let of = |key: &str| plot[key].as_f64().expect("a number");
            assert!(of("marks") >= 1.0 && of("outside") == 0.0 && of("cut") == 0.0, "{found}");
            // The height of a text on a scaled drawing is not exact.
            assert!(of("text_height") > 10.9, "at {width}: {found}");
        }
    }
    assert_eq!(grounds[0], grounds[1]);
    assert_ne!(grounds[0], grounds[2], "a dark page has another ground");
}
