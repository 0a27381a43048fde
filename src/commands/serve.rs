//! `trail-rt serve`: the OpenAI-compatible server.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use clap::Args;
use serde_json::json;
use trail_setup::{EngineArgs, Error, ModelArgs, Output, Setup, notice};

use crate::server::{self, ServerOptions};

/// Options of `trail-rt serve`.
#[derive(Args, Debug, Default)]
pub struct ServeArgs {
    /// Address to listen on [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    host: Option<IpAddr>,
    /// Port to listen on; 0 for any that is free [default: 8000]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Name of the model in requests and responses [default: that of its file or folder]
    #[arg(long, value_name = "NAME")]
    served_model_name: Option<String>,
    /// Write a line to stderr for each request: method, path, status, duration, tokens
    #[arg(long)]
    verbose: bool,
    /// Treat special tokens in chat messages of users and tools as control tokens, not as text
    #[arg(long)]
    allow_special_tokens: bool,
}

impl ServeArgs {
    /// Returns these options, with `others` in place of those that are not set.
    pub fn or(self, others: ServeArgs) -> ServeArgs {
        ServeArgs {
            host: self.host.or(others.host),
            port: self.port.or(others.port),
            served_model_name: self.served_model_name.or(others.served_model_name),
            verbose: self.verbose || others.verbose,
            allow_special_tokens: self.allow_special_tokens || others.allow_special_tokens,
        }
    }

    /// Returns true if no option is set.
    pub fn is_empty(&self) -> bool {
        let flags = self.verbose || self.allow_special_tokens;
        !flags && self.host.is_none() && self.port.is_none() && self.served_model_name.is_none()
    }

    /// The port to listen on.
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(8000)
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::new(self.host.unwrap_or(Ipv4Addr::LOCALHOST.into()), self.port())
    }
}

/// Serves until a signal stops it. With `json`, prints one object once the server listens.
pub fn run(
    model: &ModelArgs,
    engine: &EngineArgs,
    args: &ServeArgs,
    json: bool,
) -> Result<(), Error> {
    let mut setup = Setup::load(model)?;
    let engine = setup.engine(engine)?;
    if let Some(name) = &args.served_model_name {
        setup.name.clone_from(name);
    }
    let options =
        ServerOptions { verbose: args.verbose, allow_special_tokens: args.allow_special_tokens };
    server::run(setup, engine, args.address(), options, |at, state| {
        let (model, policy) = (&state.name, state.engine.policy());
        notice(format_args!("trail-rt serves {model} under {policy} on http://{at}"));
        if json {
            let url = format!("http://{at}");
            let object = json!({ "model": model, "policy": policy.name(), "url": url });
            return Output::stdout().line(&object.to_string());
        }
        Ok(())
    })
}
