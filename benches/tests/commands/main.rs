//! The command as people use it: a server for other hosts, campaigns and pages.

mod browser;
mod costs;
mod page;
mod places;
mod programs;
mod remote;
mod runs;
mod schema;
