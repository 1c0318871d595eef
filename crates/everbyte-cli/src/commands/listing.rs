//! Arguments and output shared by the commands to list parts of a pool.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use everbyte_control::{Request, Response};
use serde::Serialize;

use crate::output;
use crate::session::{Access, SessionError, ask};

/// Arguments of a listing command.
#[derive(clap::Args)]
pub(crate) struct Listing {
    /// The pool's file or device.
    pool: PathBuf,
    /// Print the list as JSON.
    #[arg(long)]
    json: bool,
}

impl Listing {
    /// Asks the pool's server, or opens a private copy of the pool.
    ///
    /// # Errors
    /// The pool cannot be reached, or the request was refused.
    pub(crate) fn ask(&self, request: Request) -> Result<Response, SessionError> {
        ask(&self.pool, Access::Read, request)
    }

    /// Prints `items` by `show`, or as a JSON object with the one key `name`.
    ///
    /// # Errors
    /// The items have no JSON form.
    pub(crate) fn print<T: Serialize>(
        &self,
        name: &str,
        items: &[T],
        show: impl FnOnce(&[T]),
    ) -> anyhow::Result<ExitCode> {
        if self.json {
            output::json(&BTreeMap::from([(name, items)]))?;
        } else {
            show(items);
        }
        Ok(ExitCode::SUCCESS)
    }
}
