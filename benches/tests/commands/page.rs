//! The page of a run.

use crate::browser;
use crate::programs::{self, Folder, perf};

#[test]
fn every_plot_of_a_page_shows_something_on_wide_and_on_narrow_screens() {
    let _alone = programs::alone();
    let folder = Folder::new();
    let campaign = folder.write(
        "campaign.toml",
        "duration = 0.01\ncores = [0, 0]\n[[measure]]\nwhat = [\"lat\", \"connect\"]\n\
         layer = [\"tcp\"]\nsockets = [\"kernel\"]\nsize = [64, 1000, 20000]\n",
    );
    let run = folder.path("run.json");
    perf(&["campaign", &campaign, "--into", &run]);
    // Two sweeps, three of percentiles, six of rounds.
    browser::check(&perf(&["report", &run]), 11);
}
