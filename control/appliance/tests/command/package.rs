//! The Debian package and the container image, judged by Debian's and systemd's own programs.

use crate::manual::pages;
use crate::running::folder;
use pollux_node::programs::{LIBRARY, find_library};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Exposure of a unit above which systemd-analyze(1) fails here, in tenths.
const EXPOSURE_MAX: &str = "--threshold=30";

/// A package of the program under test, and the folder in which it was built.
struct Package {
    folder: PathBuf,
    file: PathBuf,
}

impl Package {
    /// `None`, with a printed reason, where `test` may not build one.
    fn build(test: &str, arguments: &[&str]) -> Option<Self> {
        for program in ["dpkg-deb", "dpkg-shlibdeps", "strip"] {
            pollux_referee::program(test, program)?;
        }
        let folder = folder(test);
        let pages = folder.join("pages");
        pages::write(&pages, "2026-01-01").expect("there is space");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/package");
        let mut command = Command::new(script);
        command.args(["--binary", env!("CARGO_BIN_EXE_pollux"), "--library"]);
        command.arg(find_library().expect("it is built for tests")).arg("--pages").arg(&pages);
        command.arg("--output").arg(&folder).args(arguments);
        let message = output(&mut command);
        let file = message.lines().next().expect("it prints the path");
        Some(Self { file: file.into(), folder })
    }

    /// Where it is unpacked.
    fn root(&self) -> PathBuf {
        self.folder.join("root")
    }
}

impl Drop for Package {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// What a program prints; it has to succeed, and to complain of nothing.
fn output(command: &mut Command) -> String {
    let (printed, message) = outputs(command);
    assert!(message.is_empty(), "{command:?}: {message}{printed}");
    printed
}

/// What a program prints and says besides; it has to succeed.
fn outputs(command: &mut Command) -> (String, String) {
    let output = command.stdin(Stdio::null()).output().expect("it starts");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {message}{printed}");
    (printed, message)
}

#[test]
fn the_package_pleases_its_judges_and_the_image_runs_without_privileges() {
    let test = "the_package_pleases_its_judges";
    let buildah = pollux_referee::program(test, "buildah");
    let image = buildah.as_ref().map(|_| "--image");
    let Some(package) = Package::build(test, image.as_slice()) else { return };
    judge_files(&package);
    judge_unit(test, &package);
    if let Some(lintian) = pollux_referee::program(test, "lintian") {
        let mut lintian = Command::new(lintian);
        lintian.args(["--fail-on", "error,warning", "--allow-root"]).arg(&package.file);
        assert_eq!(output(&mut lintian), "");
    }
    if let Some(buildah) = buildah {
        run_image(&buildah, &package);
    }
}

/// What is in the package, and that it fits together.
fn judge_files(package: &Package) {
    let root = package.root();
    output(Command::new("dpkg-deb").arg("-R").arg(&package.file).arg(&root));
    for (path, words) in [
        ("DEBIAN/conffiles", "/etc/pollux/pollux.toml"),
        ("DEBIAN/control", " libc6 (>= "),
        ("etc/pollux/pollux.toml", "[interface.ib0]"),
        ("lib/systemd/system/pollux.service", "Type=notify"),
        ("usr/lib/sysusers.d/pollux.conf", "u pollux"),
        ("usr/share/doc/pollux/copyright", "Expat or Apache-2.0"),
        ("usr/share/bash-completion/completions/pollux", "_pollux()"),
        ("usr/share/zsh/vendor-completions/_pollux", "#compdef pollux"),
        ("usr/share/fish/vendor_completions.d/pollux.fish", "complete -c pollux"),
    ] {
        let text = std::fs::read_to_string(root.join(path)).unwrap_or_default();
        assert!(text.contains(words), "{path}: {text}");
    }
    assert!(root.join("usr/share/man/man1/pollux-run.1.gz").is_file());
    let version = output(Command::new(root.join("usr/bin/pollux")).arg("--version"));
    let control = output(Command::new("dpkg-deb").arg("-f").arg(&package.file).arg("Version"));
    assert_eq!(version, format!("pollux {control}"));
    // Programs that it runs get the library of the package.
    let mut exec = Command::new(root.join("usr/bin/pollux"));
    let preloaded = output(exec.args(["exec", "--", "printenv", "LD_PRELOAD"]));
    let library = Path::new(preloaded.trim_end()).canonicalize().expect("there is a file");
    let packed = root.join("usr/lib/pollux").join(LIBRARY).canonicalize();
    assert_eq!(library, packed.expect("it was unpacked"));

    // The configuration that comes along is valid once its lines are in effect; no adapter is here.
    let config = root.join("etc/pollux/pollux.toml");
    let text = std::fs::read_to_string(&config).expect("it was read above");
    let text = text.replace("mlx5_0:1", "soft:");
    let example = |line: &str| match line.strip_prefix('#') {
        Some(key) if key.starts_with('[') || key.contains(" = ") => key.to_owned(),
        _ => line.to_owned(),
    };
    let lines: Vec<_> = text.lines().map(example).collect();
    std::fs::write(&config, lines.join("\n")).expect("it is ours");
    output(Command::new(root.join("usr/bin/pollux")).arg("check").arg(&config));
}

/// The unit and the user of the service.
fn judge_unit(test: &str, package: &Package) {
    let root = package.root();
    let unit = root.join("lib/systemd/system/pollux.service");
    if pollux_referee::program(test, "systemd-analyze").is_some() {
        let verify = ["verify", "--man=no", "--recursive-errors=no"];
        let mut analyze = Command::new("systemd-analyze");
        // Only a program that exists passes, and this one is not installed here.
        let text = std::fs::read_to_string(&unit).expect("it was read above");
        let own = package.folder.join("pollux.service");
        let program = root.join("usr/bin/pollux").display().to_string();
        std::fs::write(&own, text.replace("/usr/bin/pollux", &program)).expect("it is ours");
        output(analyze.args(verify).arg(&own));
        let mut analyze = Command::new("systemd-analyze");
        let analyze = analyze.args(["security", "--no-pager", "--offline=true", EXPOSURE_MAX]);
        let report = output(analyze.arg(&unit));
        println!("{}", report.lines().last().unwrap_or_default());
    }
    if pollux_referee::program(test, "systemd-sysusers").is_some() {
        // As it is run for another root: the user is made there.
        let mut install = Command::new("sh");
        install.arg(root.join("DEBIAN/postinst")).arg("configure").env("DPKG_ROOT", &root);
        assert!(install.stderr(Stdio::null()).status().expect("it starts").success());
        let users = std::fs::read_to_string(root.join("etc/passwd")).expect("it was made");
        assert!(users.contains("\npollux:x:") || users.starts_with("pollux:x:"), "{users}");
    }
}

/// Runs the image as the user nobody, without capabilities.
fn run_image(buildah: &Path, package: &Package) {
    let image = format!("oci-archive:{}", package.folder.join("pollux.tar").display());
    let (root, run) = (package.folder.join("store"), package.folder.join("run"));
    let buildah = |arguments: &[&str]| {
        let mut command = Command::new(buildah);
        command.arg("--root").arg(&root).arg("--runroot").arg(&run);
        command
            .args(["--storage-driver", "vfs"])
            .args(arguments)
            .env("BUILDAH_ISOLATION", "chroot");
        outputs(&mut command).0
    };
    let container = buildah(&["from", "--quiet", "--pull-never", &image]);
    let container = container.trim();
    let none = ["run", "--cap-drop", "all", container, "--", "/usr/bin/pollux"];
    let demo = buildah(&[&none[..], &["demo", "--json"]].concat());
    assert!(demo.starts_with('{'), "{demo}");
    buildah(&["rm", "--all"]);
}
