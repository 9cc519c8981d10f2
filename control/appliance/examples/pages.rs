//! Writes the manual pages and the completions of the command into a folder, for packages:
//! `cargo run --example pages -- FOLDER DATE`, where the date is the one that pages show.
//!
//! They are made of what the command accepts, so they cannot lie. What the help has no place for,
//! such as files and signals, is below.

#![forbid(unsafe_code)]

use clap_complete::Shell;
use clap_mangen::roff::{Roff, bold, roman};
use std::io;
use std::path::{Path, PathBuf};

/// Terms with their meaning.
type Terms = &'static [(&'static str, &'static str)];

/// Sections that one page has besides: the page, the heading, and the text.
const SECTIONS: [(&str, &str, Terms); 8] = [
    (
        "pollux",
        "FILES",
        &[
            ("/etc/pollux/pollux.toml", "Configuration of the service."),
            ("/run/pollux/pollux.sock", "Admin socket of the service: --socket of other commands."),
            ("/usr/share/doc/pollux/README.md.gz", "Every key of the configuration."),
        ],
    ),
    (
        "pollux",
        "EXIT STATUS",
        &[
            ("0", "The command did what it was to do."),
            ("1", "It did not; standard error says why. Of pollux-ping(1): there was no reply."),
            ("2", "The arguments are wrong. Of pollux-ping(1): also any other error."),
        ],
    ),
    (
        "pollux-exec",
        "EXIT STATUS",
        &[
            ("1", "The program was not started; standard error says why."),
            ("128 and more", "A signal ended the program: 128 and its number."),
            ("Any other", "That of the program."),
        ],
    ),
    (
        "pollux-exec",
        "ENVIRONMENT",
        &[
            (
                "LD_PRELOAD, SYSFS_PATH, POLLUX_DEVICE, POLLUX_PORT_GROUP",
                "Set for the program and its children: the library, the folder in place of /sys, \
                 the port of the fabric, and the number that all processes at the port have.",
            ),
            ("POLLUX_MISSING", "Set with --doctor: the file that lists what is missing."),
        ],
    ),
    (
        "pollux-exec",
        "FILES",
        &[(
            "/usr/lib/pollux/libpollux_connectx.so",
            "The library that is preloaded into the program. One beside pollux comes first.",
        )],
    ),
    (
        "pollux-run",
        "SIGNALS",
        &[
            ("SIGHUP", "Read the configuration again, as by pollux-reload(1)."),
            ("SIGINT, SIGTERM", "Leave the subnets in order, and end."),
        ],
    ),
    (
        "pollux-run",
        "ENVIRONMENT",
        &[
            (
                "NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID",
                "Set by a service manager: the node tells it when it is ready, reloads and ends, \
                 and that all of its workers run. See sd_notify(3).",
            ),
            (
                "LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES",
                "Set by a service manager that has kept the shadows of the node before: they are \
                 taken over, so that the kernel does not notice a restart. See sd_listen_fds(3).",
            ),
        ],
    ),
    (
        "pollux-run",
        "CAPABILITIES",
        &[
            ("CAP_NET_ADMIN", "For shadows of interfaces."),
            ("CAP_IPC_LOCK", "For adapters, unless as much memory may be locked as they need."),
        ],
    ),
];

/// Writes all pages, of this date, and completions; gives the names of the files.
pub fn write(folder: &Path, date: &str) -> io::Result<Vec<PathBuf>> {
    std::fs::create_dir_all(folder)?;
    let mut files = Vec::new();
    let mut command = pollux_appliance::command();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        files.push(clap_complete::generate_to(shell, &mut command, "pollux", folder)?);
    }
    // `pollux help` prints what the pages have.
    let mut command = pollux_appliance::command().disable_help_subcommand(true);
    command.build();
    write_pages(command, folder, date, &mut files)?;
    Ok(files)
}

/// Writes the page of a command and those of its subcommands.
fn write_pages(
    command: clap::Command,
    folder: &Path,
    date: &str,
    files: &mut Vec<PathBuf>,
) -> io::Result<()> {
    for subcommand in command.get_subcommands() {
        write_pages(subcommand.clone(), folder, date, files)?;
    }
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let source = concat!("pollux ", env!("CARGO_PKG_VERSION"));
    let mut page = Vec::new();
    let man = clap_mangen::Man::new(command).date(date).source(source).manual("Pollux");
    man.render(&mut page)?;
    for (_, heading, terms) in SECTIONS.iter().filter(|(page, ..)| *page == name) {
        let mut roff = Roff::new();
        roff.control("SH", [*heading]);
        for (term, meaning) in *terms {
            roff.control("TP", []).text([bold(*term)]).text([roman(*meaning)]);
        }
        roff.to_writer(&mut page)?;
    }
    let file = folder.join(format!("{name}.1"));
    // An empty line is no paragraph for every formatter.
    let page = String::from_utf8_lossy(&page).replace(".br\n\n.br\n", ".sp\n");
    std::fs::write(&file, page)?;
    files.push(file);
    Ok(())
}

fn main() -> io::Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [folder, date] = &arguments[..] else {
        return Err(io::Error::other("write two arguments: the folder, and the date of the pages"));
    };
    for file in write(Path::new(folder), date)? {
        println!("{}", file.display());
    }
    Ok(())
}
