//! `serve --vhost`: the servers of virtual machines.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use everbyte::volume::SWAP;
use everbyte_nbd::{Address, Durability, Listener, SocketFile};
use everbyte_server::OpenPool;
use everbyte_server::metrics::Face;
use everbyte_vhost::{VhostServer, VhostSettings};

/// A volume, and the Unix socket where virtual machines find it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct VhostTarget {
    pub(super) volume: String,
    socket: PathBuf,
}

impl std::str::FromStr for VhostTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((volume, socket)) if !volume.is_empty() && !socket.is_empty() => {
                Ok(Self { volume: volume.to_owned(), socket: socket.into() })
            }
            _ => Err(format!("{text:?} is not a volume with a socket: write VOLUME=PATH")),
        }
    }
}

impl VhostTarget {
    /// The line that announces the readiness.
    pub(super) fn ready_line(&self) -> String {
        format!("ready: {} ({})", self.address(), self.volume)
    }

    fn address(&self) -> String {
        format!("vhost-user-blk:{}", self.socket.display())
    }

    /// Serves the volume until the server is dropped.
    pub(super) fn serve(
        &self,
        pool: &Arc<OpenPool>,
        file: SocketFile,
        write_back: bool,
    ) -> anyhow::Result<VhostServer> {
        let Self { volume, socket } = self;
        if !pool.exported().contains(volume) {
            bail!("there is no block volume or cache {volume:?} to serve to virtual machines");
        }
        if pool.pool().engine().volume(volume).is_ok_and(|volume| volume.kind() == SWAP) {
            bail!("the swap volume {volume:?} cannot be served to virtual machines");
        }
        let listener = Listener::bind(&Address::Unix(socket.clone()), file)?;
        let settings = VhostSettings { name: volume.clone(), address: self.address(), write_back };
        let (pool, name) = (Arc::clone(pool), volume.clone());
        let open = move || match pool.export(&name, Face::Vhost) {
            Ok(export) if export.durability == Durability::Never => {
                Err("the volume is volatile".to_owned())
            }
            Ok(export) => Ok(export.device),
            Err(error) => Err(error.to_string()),
        };
        let server = VhostServer::start(listener, settings, Box::new(open));
        server.with_context(|| format!("cannot serve {volume:?} to virtual machines"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vhost_target_is_volume_and_path() {
        let target: VhostTarget = "disk=/run/a=b".parse().unwrap();
        assert_eq!((target.volume.as_str(), target.socket), ("disk", PathBuf::from("/run/a=b")));
        for text in ["disk", "=", "disk=", "=/run/a", ""] {
            assert!(text.parse::<VhostTarget>().is_err(), "{text:?}");
        }
    }
}
