//! A host for tests of the command: the MPI is a shell script, the plug-in an empty file.
#![allow(dead_code, missing_docs, reason = "not every test uses everything; test code")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub struct World {
    root: tempfile::TempDir,
}

impl World {
    /// An MPICH whose `mpiexec` runs the program once, as rank 0, after having performed `launch` (shell).
    pub fn new(launch: &str) -> World {
        let world = World { root: tempfile::tempdir().unwrap() };
        world.script(
            "mpi/bin/mpiexec",
            &format!(
                "if [ \"$1\" = --version ]; then echo 'HYDRA build details:'; echo ' Version: 5.0.2'; exit; fi\n\
                 echo \"launched $*\" >> {root}/launches\n{launch}\nshift 2\nPMI_RANK=0 exec \"$@\"",
                root = world.root.path().display()
            ),
        );
        world.script("mpi/bin/program", "echo ran \"$@\"");
        std::fs::create_dir(world.at("shm")).unwrap();
        std::fs::create_dir(world.at("empty")).unwrap();
        std::fs::write(world.at("libweir-fi.so"), "").unwrap();
        world
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub fn script(&self, name: &str, text: &str) {
        let path = self.at(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// The command, with nothing from our environment, and this world's MPI and plug-in.
    pub fn weir(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command
            .args(words)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("WEIR_MPI", self.at("mpi"))
            .env("WEIR_ENV_PATH", self.at("empty"))
            .env("WEIR_PROVIDER_PATH", self.at("libweir-fi.so"))
            .env("FI_WEIR_SHM_DIR", self.at("shm"));
        command
    }

    /// The arguments of the launcher, one line for each call.
    pub fn launches(&self) -> String {
        std::fs::read_to_string(self.at("launches")).unwrap_or_default()
    }
}

pub fn output(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

pub fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).unwrap().next().is_none()
}
