//! The contenders that can run on this host: their MPIs, the compiled programs, and what is missing. Makes the launch
//! of a job for a contender.

use super::contender::{Contender, OtherMpi};
use super::jobs::{self, select};
use super::program::{self, Source};
use super::transport::Transport;
use crate::launcher::Launcher;
use crate::options::MpichOption;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use weir_mpi::find::{self, Kind, Mpi, SearchEnvironment};
use weir_mpi::launch::{self, JobTransport, Launch};
use weir_mpi::provider_file;
use weir_output::Failure;

/// An MPI with the programs compiled for it.
struct PreparedMpi {
    mpi: Mpi,
    programs: BTreeMap<&'static str, PathBuf>,
}

impl PreparedMpi {
    fn new(mpi: Mpi, sources: &[Source], scratch: &Path) -> Result<PreparedMpi, String> {
        let compiled = |source: &Source| Ok((source.name, program::compile(*source, &mpi, scratch)?));
        let programs = sources.iter().map(compiled).collect::<Result<_, String>>()?;
        Ok(PreparedMpi { mpi, programs })
    }
}

/// Contenders that are ready to run.
pub struct ContenderSet {
    mpich: PreparedMpi,
    other_mpis: BTreeMap<OtherMpi, PreparedMpi>,
    /// Directory of the plug-in, or why it is missing.
    provider: Result<PathBuf, String>,
    /// The plug-in itself.
    plug_in: Option<PathBuf>,
    /// Contenders that can be measured, in the order of [`Contender::all`].
    pub ready: Vec<Contender>,
    /// Contenders that cannot be measured, and why.
    pub missing: Vec<(Contender, String)>,
}

impl ContenderSet {
    /// Finds the MPIs and compiles `sources` for each. `only`: the
    /// selected contenders; empty: all.
    ///
    /// # Errors
    /// [`Failure`]: there is no MPICH, or it has no compiler.
    pub fn prepare(
        mpich: &MpichOption,
        only: &[Contender],
        sources: &[Source],
        scratch: &Path,
    ) -> Result<ContenderSet, Failure> {
        let search_environment = SearchEnvironment::of_process();
        let mpi = mpich.find(&search_environment)?;
        let mpich = PreparedMpi::new(mpi, sources, scratch).map_err(Failure::NoMpi)?;
        let (plug_in, provider) = match provider_file::find_for_this_command() {
            Ok(plug_in) => {
                let directory = provider_file::isolate(&plug_in, scratch)?;
                (Some(plug_in), Ok(directory))
            }
            Err(failure) => (None, Err(failure.to_string())),
        };
        let mut set = ContenderSet {
            mpich,
            other_mpis: BTreeMap::new(),
            provider,
            plug_in,
            ready: Vec::new(),
            missing: Vec::new(),
        };
        let offered = if only.is_empty() { Contender::all() } else { Contender::named() };
        for contender in select(&offered, only) {
            match set.add(contender, &search_environment, sources, scratch) {
                Ok(()) => set.ready.push(contender),
                Err(why) => set.missing.push((contender, why)),
            }
        }
        Ok(set)
    }

    fn add(
        &mut self,
        contender: Contender,
        search_environment: &SearchEnvironment,
        sources: &[Source],
        scratch: &Path,
    ) -> Result<(), String> {
        let which = match contender {
            Contender::Weir(variant) if variant.loads_collectives() => {
                return self.collectives().map(|_| ());
            }
            Contender::Mpich(Transport::Weir) | Contender::Weir(_) => {
                return self.provider.clone().map(|_| ());
            }
            Contender::Mpich(_) | Contender::MpichBetweenHosts(_) => return Ok(()),
            Contender::OtherMpi(which) => which,
        };
        let kind = if which == OtherMpi::OpenMpi { Kind::OpenMpi } else { Kind::Intel };
        let mpi =
            find::choose(Some(kind.word()), search_environment).map_err(|failure| failure.to_string())?;
        let prepared = match which {
            OtherMpi::OpenMpi => PreparedMpi::new(mpi, sources, scratch).or_else(|why| {
                // The first may lack the headers, which distributions have in a package of their own.
                let others = find::find_all(search_environment).into_iter().filter(|mpi| mpi.kind == kind);
                let usable = others.filter(|mpi| mpi.unusable.is_none());
                usable.map(|mpi| PreparedMpi::new(mpi, sources, scratch)).find_map(Result::ok).ok_or(why)
            })?,
            // Intel MPI comes without a compiler. Programs for MPICH have the same binary interface.
            OtherMpi::IntelMpi => PreparedMpi { mpi, programs: self.mpich.programs.clone() },
        };
        self.other_mpis.insert(which, prepared);
        Ok(())
    }

    /// The library for collective operations, or why it is missing.
    fn collectives(&self) -> Result<PathBuf, String> {
        self.provider.clone()?;
        let beside = self.plug_in.as_deref().and_then(launch::collectives_library);
        beside.ok_or_else(|| String::from("no libweir-mpi.so that can be loaded is beside weir's plug-in"))
    }

    /// A job of one of the programs.
    ///
    /// # Panics
    /// If the contender is not in [`ContenderSet::ready`], or the program was not prepared.
    pub fn launch(&self, contender: Contender, ranks: u32, program: Source, words: Vec<String>) -> Launch {
        let (prepared, job_transport) = self.prepared(contender);
        let mut launch = Launch::new(&prepared.mpi, ranks, job_transport, &[]);
        self.set_variant(&mut launch, contender);
        launch.program(&prepared.programs[program.name], words);
        launch
    }

    /// [`ContenderSet::launch`] with a launcher that starts ranks elsewhere. `by`: how one of this kind does it.
    pub fn launch_by(
        &self,
        by: &dyn Fn(Kind) -> Launcher,
        contender: Contender,
        ranks: u32,
        program: Source,
        words: Vec<String>,
    ) -> Launch {
        let (prepared, job_transport) = self.prepared(contender);
        let Launcher { inside, arguments, variables } = by(prepared.mpi.kind);
        let mut launch = Launch::new(&prepared.mpi, ranks, job_transport, &arguments);
        for (name, value) in variables {
            launch.set(name, value);
        }
        self.set_variant(&mut launch, contender);
        launch.run_inside(&inside);
        launch.program(&prepared.programs[program.name], words);
        launch
    }

    /// The MPI of a contender, and its transport.
    fn prepared(&self, contender: Contender) -> (&PreparedMpi, JobTransport<'_>) {
        match contender {
            Contender::Mpich(transport) => (&self.mpich, jobs::job_transport(transport, &self.provider)),
            Contender::MpichBetweenHosts(transport) => (&self.mpich, transport.job_transport()),
            Contender::Weir(_) => (&self.mpich, jobs::job_transport(Transport::Weir, &self.provider)),
            Contender::OtherMpi(which) => (&self.other_mpis[&which], JobTransport::OwnSharedMemory),
        }
    }

    /// A job over weir with the plug-in in `provider`, a directory that holds nothing else.
    pub fn launch_over_plug_in(
        &self,
        provider: &Path,
        ranks: u32,
        program: Source,
        words: Vec<String>,
    ) -> Launch {
        let mut launch = Launch::new(&self.mpich.mpi, ranks, JobTransport::Weir(provider), &[]);
        launch.program(&self.mpich.programs[program.name], words);
        launch
    }

    /// A program that starts its own processes and uses no MPI.
    pub fn launch_alone(&self, program: Source, words: Vec<String>) -> Launch {
        let mut launch = Launch::new(&self.mpich.mpi, 1, JobTransport::OwnSharedMemory, &[]);
        launch.program(&self.mpich.programs[program.name], words);
        launch
    }

    /// A program as it was compiled for the MPICH.
    ///
    /// # Panics
    /// If it was not prepared.
    pub fn mpich_program(&self, program: Source) -> &Path {
        &self.mpich.programs[program.name]
    }

    /// The MPICH.
    pub fn mpich(&self) -> &Mpi {
        &self.mpich.mpi
    }

    /// The other MPIs.
    pub fn other_mpis(&self) -> Vec<&Mpi> {
        self.other_mpis.values().map(|prepared| &prepared.mpi).collect()
    }

    /// All MPIs with their versions.
    pub fn mpis(&self) -> Vec<String> {
        let all = std::iter::once(self.mpich()).chain(self.other_mpis());
        all.map(|mpi| format!("{} {}", mpi.kind.name(), mpi.version)).collect()
    }

    /// weir's plug-in, if it was found.
    pub fn plug_in(&self) -> Option<&Path> {
        self.plug_in.as_deref()
    }

    /// The settings of a variant of weir.
    fn set_variant(&self, launch: &mut Launch, contender: Contender) {
        let Contender::Weir(variant) = contender else { return };
        for &(name, value) in variant.settings() {
            launch.set(name, value);
        }
        if variant.loads_collectives()
            && let Ok(library) = self.collectives()
        {
            launch.preload(&library);
        }
    }
}
