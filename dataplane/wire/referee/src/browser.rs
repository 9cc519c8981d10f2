//! Runs scripts in web pages in headless Chromium, on wide and narrow screens.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAM: &str = "/usr/bin/chromium";

/// The outer page: its iframe is as wide as the screen, which may be narrower than 500 pixels, the
/// minimum width of a browser window.
const FRAME: &str = "<html style=\"color-scheme: light dark\"><script>
onmessage = told => document.getElementById('found').textContent = told.data;
</script><pre id=\"found\"></pre>
<iframe src=\"page.html\" width=\"WIDTH\" height=\"900\" style=\"border: 0\"></iframe>";

/// The screen that displays a page; `width` is in pixels.
#[derive(Clone, Copy, Debug)]
pub struct BrowserScreen {
    pub width: u32,
    pub is_dark: bool,
}

pub const WIDE: BrowserScreen = BrowserScreen { width: 1280, is_dark: false };
pub const NARROW: BrowserScreen = BrowserScreen { width: 400, is_dark: false };
pub const WIDE_AND_DARK: BrowserScreen = BrowserScreen { width: 1280, is_dark: true };

/// A browser with a separate profile, in a folder that the caller removes.
pub struct Browser<'a>(&'a Path);

impl<'a> Browser<'a> {
    /// Finds the browser; if it is not installed, prints that and returns `None`. Tests are skipped
    /// then, even if `POLLUX_REFEREES` is `required`: the browser is large, and the pages do not
    /// depend on the machine.
    pub fn find(folder: &'a Path) -> Option<Self> {
        let is_there = Path::new(PROGRAM).exists();
        if !is_there {
            println!("SKIP: there is no {PROGRAM}; scripts/host-setup --pages installs it");
        }
        is_there.then_some(Self(folder))
    }

    /// Runs `script` in the page `html`; returns the text that the script passes to
    /// `parent.postMessage`, which is empty if it passes none.
    ///
    /// # Panics
    /// If the page prints errors to the console, or the browser fails.
    pub fn probe(&self, html: &str, script: &str, screen: BrowserScreen) -> String {
        let script = format!("<script>{script}</script></body>");
        self.write("page.html", &html.replace("</body>", &script));
        let frame = self.write("frame.html", &FRAME.replace("WIDTH", &screen.width.to_string()));
        let mut browser = Command::new(PROGRAM);
        browser.args(["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]);
        browser.arg(format!("--user-data-dir={}", self.0.join("profile").display()));
        browser.arg("--window-size=1400,1000");
        browser.args(screen.is_dark.then_some("--blink-settings=preferredColorScheme=0"));
        browser.args(["--virtual-time-budget=5000", "--dump-dom"]).arg(frame);
        let output = browser.output().expect("the browser runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains(":CONSOLE"), "{said}");
        let dom = String::from_utf8(output.stdout).expect("it is text");
        let found = dom.split_once("<pre id=\"found\">");
        let found = found.and_then(|(_, rest)| rest.split_once("</pre>"));
        found.expect("the script has run").0.into()
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).expect("it is written");
        path
    }
}
