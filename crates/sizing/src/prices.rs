//! The price file: what machines and volumes cost a month, and what clusters are made of.
//!
//! Invariant: two bases are kept apart. `AsGiven` takes a cluster's totals as the file states them,
//! `Corrected` takes nodes times the price of one where those totals cannot be right. Where both
//! exist and disagree, the disagreement is a finding and never averaged away.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Deserialize;

use crate::input::{Document, Mistake, Placed};
use crate::results::Configuration;

/// Nodes of one cluster, at most: far above what one Raft group's coordination stands.
pub const NODES_MAX: u64 = 1000;

/// Totals are published in whole units of currency, and so are prices of one machine: half a unit
/// each.
const ROUNDING: f64 = 0.5;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PriceFile {
    #[serde(default = "dollar")]
    currency: String,
    #[serde(default)]
    machine: Vec<Placed<Machine>>,
    #[serde(default)]
    volume: Vec<Placed<Volume>>,
    #[serde(default)]
    cluster: Vec<Placed<Cluster>>,
}

fn dollar() -> String {
    "$".to_owned()
}

/// A kind of machine.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Its name, as clusters say it.
    pub name: String,
    /// Virtual CPUs.
    pub vcpus: f64,
    /// Memory, where stated.
    pub memory_gb: Option<f64>,
    /// What its network carries, where stated.
    pub network_mbit: Option<f64>,
    /// A month of one, as the file states it.
    pub month: Option<f64>,
}

/// A kind of volume; each node has one.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Volume {
    /// Its name, as configurations say it.
    pub name: String,
    /// A month of one, as the file states it.
    pub month: Option<f64>,
    /// Size.
    pub gb: Option<f64>,
    /// Sustained operations a second.
    pub iops: Option<f64>,
    /// Sustained throughput.
    pub mib_s: Option<f64>,
}

/// A cluster with its stated totals.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Its name.
    pub name: String,
    /// Nodes.
    pub nodes: u64,
    /// Kind of machine.
    pub machine: String,
    /// A month of all machines, where stated.
    pub machines_month: Option<f64>,
    /// A month of all volumes by kind, where stated.
    #[serde(default)]
    pub volumes_month: BTreeMap<String, f64>,
}

/// Which of two prices counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// Totals of a cluster as the file states them, else nodes times one.
    AsGiven,
    /// The same, but nodes times one where the total does not agree with that.
    Corrected,
}

/// A total that does not agree with the price of one.
#[derive(Clone, Debug, PartialEq)]
pub struct PriceFinding {
    /// The cluster.
    pub cluster: String,
    /// "machines", or the volume's name.
    pub part: String,
    /// The total in the file.
    pub stated: f64,
    /// What nodes times one gives.
    pub expected: f64,
    /// The price of one.
    pub one: f64,
    /// Nodes.
    pub nodes: u64,
}

/// Everything a price file says.
#[derive(Clone, Debug, PartialEq)]
pub struct PriceList {
    /// The file, for messages.
    pub file: String,
    /// Sign of the currency.
    pub currency: String,
    /// Kinds of machines.
    pub machines: Vec<Machine>,
    /// Kinds of volumes.
    pub volumes: Vec<Volume>,
    /// Clusters with stated totals, and candidates of a prediction.
    pub clusters: Vec<Cluster>,
}

impl PriceList {
    /// Reads a price file.
    pub fn read(document: &Document) -> Result<PriceList, Mistake> {
        let file: PriceFile = document.toml()?;
        let machines = distinct(document, file.machine, |machine| &machine.name)?;
        let volumes = distinct(document, file.volume, |volume| &volume.name)?;
        let clusters = distinct(document, file.cluster, |cluster| &cluster.name)?;
        for (at, machine) in &machines {
            document.above_zero(at, &[("vcpus", Some(machine.vcpus))])?;
        }
        for (at, cluster) in &clusters {
            let unknown = |field: &str, kind: &str, name: &str| {
                Err(document.mistake(at, field, format!("there is no [[{kind}]] named {name:?}")))
            };
            if !machines.iter().any(|(_, known)| known.name == cluster.machine) {
                return unknown("machine", "machine", &cluster.machine);
            }
            let is_known = |volume: &&String| volumes.iter().any(|(_, known)| known.name == **volume);
            if let Some(volume) = cluster.volumes_month.keys().find(|volume| !is_known(volume)) {
                return unknown("volumes_month", "volume", volume);
            }
            if !(1..=NODES_MAX).contains(&cluster.nodes) {
                let what = format!("must be from 1 to {NODES_MAX}, and is {}", cluster.nodes);
                return Err(document.mistake(at, "nodes", what));
            }
        }
        Ok(PriceList {
            file: document.file.clone(),
            currency: file.currency,
            machines: rows(machines),
            volumes: rows(volumes),
            clusters: rows(clusters),
        })
    }

    /// The machine of a name.
    pub fn machine(&self, name: &str) -> Option<&Machine> {
        self.machines.iter().find(|machine| machine.name == name)
    }

    /// The volume of a name.
    pub fn volume(&self, name: &str) -> Option<&Volume> {
        self.volumes.iter().find(|volume| volume.name == name)
    }

    /// A month of one machine: as stated, else what most clusters made of it agree on.
    pub fn machine_month(&self, name: &str) -> Option<f64> {
        let stated = self.machine(name).and_then(|machine| machine.month);
        let made_of_it = self.clusters.iter().filter(|cluster| cluster.machine == name);
        stated.or_else(|| {
            agreed(made_of_it.filter_map(|cluster| Some(cluster.machines_month? / cluster.nodes as f64)).collect())
        })
    }

    /// A month of one volume, by the same rule.
    pub fn volume_month(&self, name: &str) -> Option<f64> {
        let stated = self.volume(name).and_then(|volume| volume.month);
        let of = |cluster: &Cluster| Some(cluster.volumes_total(name)? / cluster.nodes as f64);
        stated.or_else(|| agreed(self.clusters.iter().filter_map(of).collect()))
    }

    /// What a configuration costs a month, all its machines and volumes. The error names the
    /// missing price.
    pub fn month(&self, configuration: &Configuration, basis: Basis) -> Result<f64, String> {
        let nodes = configuration.nodes as f64;
        let stated = self.clusters.iter().find(|cluster| {
            cluster.name == configuration.cluster
                && cluster.nodes == configuration.nodes
                && cluster.machine == configuration.machine
        });
        let choose = |total: Option<f64>, one: Option<f64>| {
            let counted = one.map(|one| one * nodes);
            match (basis, total, one) {
                (Basis::Corrected, Some(total), Some(one)) if !agrees(total, one, nodes) => counted,
                _ => total.or(counted),
            }
        };
        let machines = choose(stated.and_then(|s| s.machines_month), self.machine_month(&configuration.machine))
            .ok_or_else(|| format!("no price for machine {:?} in {}", configuration.machine, self.file))?;
        let volumes = choose(
            stated.and_then(|s| s.volumes_total(&configuration.volume)),
            self.volume_month(&configuration.volume),
        )
        .ok_or_else(|| format!("no price for volume {:?} in {}", configuration.volume, self.file))?;
        Ok(machines + volumes)
    }

    /// That a configuration has the CPUs that its machine has here. The error says what contradicts
    /// what.
    pub fn same_vcpus(&self, configuration: &Configuration) -> Result<(), String> {
        let Configuration { machine, vcpus, .. } = configuration;
        match self.machine(machine) {
            Some(known) if known.vcpus != *vcpus => {
                Err(format!("{vcpus} contradicts {}, where machine {machine:?} has vcpus = {}", self.file, known.vcpus))
            }
            _ => Ok(()),
        }
    }

    /// Totals that do not agree with the price of one, in the order of the file.
    pub fn findings(&self) -> Vec<PriceFinding> {
        let mut findings = Vec::new();
        for cluster in &self.clusters {
            let mut compare = |part: &str, stated: Option<f64>, one: Option<f64>| {
                let (Some(stated), Some(one)) = (stated, one) else { return };
                let nodes = cluster.nodes as f64;
                if !agrees(stated, one, nodes) {
                    let (cluster, part, nodes) = (cluster.name.clone(), part.to_owned(), cluster.nodes);
                    findings.push(PriceFinding { cluster, part, stated, expected: one * nodes as f64, one, nodes });
                }
            };
            compare("machines", cluster.machines_month, self.machine_month(&cluster.machine));
            for (volume, total) in &cluster.volumes_month {
                compare(volume, Some(*total), self.volume_month(volume));
            }
        }
        findings
    }
}

impl Cluster {
    fn volumes_total(&self, volume: &str) -> Option<f64> {
        self.volumes_month.get(volume).copied()
    }
}

/// A total is nodes times one, but for the rounding of both.
fn agrees(total: f64, one: f64, nodes: f64) -> bool {
    (total - one * nodes).abs() <= ROUNDING * nodes + ROUNDING
}

/// The median of prices of one, in whole units: prices are published in whole units, and one wrong
/// total among three must not move it.
fn agreed(mut prices: Vec<f64>) -> Option<f64> {
    prices.sort_by(f64::total_cmp);
    let middle = prices.len().checked_sub(1)? / 2;
    Some(prices[middle].round())
}

/// A row of the file, with its place.
type Row<T> = (Range<usize>, T);

/// Rows whose names are there, and each only once.
fn distinct<T>(document: &Document, placed: Vec<Placed<T>>, name: fn(&T) -> &String) -> Result<Vec<Row<T>>, Mistake> {
    let rows: Vec<Row<T>> = placed.into_iter().map(|row| (row.span(), row.into_inner())).collect();
    for (number, (at, row)) in rows.iter().enumerate() {
        if name(row).is_empty() {
            return Err(document.mistake(at, "name", "must not be empty"));
        }
        if rows[..number].iter().any(|(_, other)| name(other) == name(row)) {
            return Err(document.mistake(at, "name", format!("{:?} is there twice", name(row))));
        }
    }
    Ok(rows)
}

fn rows<T>(placed: Vec<Row<T>>) -> Vec<T> {
    placed.into_iter().map(|(_, row)| row).collect()
}
