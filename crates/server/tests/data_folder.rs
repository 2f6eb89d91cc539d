//! What a person meets whose data folder is not the one of this node.
#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::path::Path;

use server::config::{Config, Key, Machine, Sources, load, open_data_folder};

/// The configuration of a node on a host of that name, with or without a chosen name.
fn config(folder: &Path, hostname: &str, node_name: Option<&str>) -> Config {
    let mut sources = Sources::default();
    sources.flags.push((Key::data_dir, folder.display().to_string()));
    sources.flags.extend(node_name.map(|name| (Key::node_name, name.to_owned())));
    let hostname = hostname.to_owned();
    load(
        &sources,
        &Machine { processors: 2, memory_bytes: 1 << 30, descriptors: 1024, ipv4: true, ipv6: true, hostname },
    )
    .unwrap()
}

fn error(config: &Config) -> String {
    let text = open_data_folder(config, None).unwrap_err().to_string();
    assert!(!text.contains('\n'), "{text}");
    text.replace(&config.data_dir.display().to_string(), "DIR")
}

#[test]
fn a_missing_folder_is_founded_and_found_again() {
    let parent = tempfile::tempdir().unwrap();
    let config = config(&parent.path().join("a/b"), "hare", None);
    let first = open_data_folder(&config, None).unwrap();
    assert!(first.was_founded());
    let identity = first.identity().clone();
    assert_eq!(identity.node_name, "leveret@hare");
    assert_ne!(identity.cluster_id, identity.folder_id, "both are drawn");
    drop(first);
    let second = open_data_folder(&config, None).unwrap();
    assert!(!second.was_founded());
    assert_eq!(second.identity(), &identity);
}

#[test]
fn a_default_name_gives_way_to_the_folders_and_a_chosen_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    drop(open_data_folder(&config(folder.path(), "hare", None), None).unwrap());
    let moved = open_data_folder(&config(folder.path(), "tortoise", None), None).unwrap();
    assert_eq!(moved.identity().node_name, "leveret@hare", "the container has another host name, the node has not");
    drop(moved);
    assert_eq!(
        error(&config(folder.path(), "hare", Some("leveret@tortoise"))),
        "the data folder DIR belongs to node leveret@hare, not leveret@tortoise; use --node-name leveret@hare or another --data-dir"
    );
}

#[test]
fn a_folder_in_use_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), "hare", None);
    let _held = open_data_folder(&config, None).unwrap();
    let text =
        format!("the data folder DIR is in use by process {}; stop it or use another --data-dir", std::process::id());
    assert_eq!(error(&config), text);
}

#[test]
fn a_folder_of_something_else_is_left_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    assert_eq!(
        error(&config(folder.path(), "hare", None)),
        "DIR is not a leveret data folder (it holds notes.txt); give an empty or a new folder as --data-dir"
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_file_in_the_place_of_the_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "mine").unwrap();
    let text = error(&config(&file, "hare", None));
    assert!(text.starts_with("cannot use the data folder DIR: "), "{text}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
}

#[test]
fn a_folder_of_another_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), "hare", None);
    drop(open_data_folder(&config, None).unwrap());
    let path = folder.path().join("identity");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("format 2", "format 3")).unwrap();
    assert_eq!(
        error(&config),
        "identity has format 3, this version of leveret reads format 2; start the version that wrote it"
    );
}

#[test]
fn a_new_node_is_not_founded_where_everybody_may_write_and_an_old_one_goes_on_there() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let mode = |mode| fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
    mode(0o1777);
    let config = config(folder.path(), "hare", None);
    assert_eq!(
        error(&config),
        "every user of this machine may put files into the data folder DIR (its mode is 1777); chmod o-w it, or name a \
         folder inside it as --data-dir, which is made for this user alone"
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was made");
    mode(0o775);
    drop(open_data_folder(&config, None).unwrap());
    mode(0o777);
    drop(open_data_folder(&config, None).unwrap());
}

#[test]
fn a_lock_that_is_a_link_is_refused_and_its_target_stays() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let target = elsewhere.path().join("diary");
    fs::write(&target, "dear diary").unwrap();
    std::os::unix::fs::symlink(&target, folder.path().join("lock")).unwrap();
    let text = error(&config(folder.path(), "hare", None));
    assert!(text.contains("symbolic link"), "{text}");
    assert_eq!(fs::read(&target).unwrap(), b"dear diary");
}
