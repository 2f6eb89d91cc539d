// How another node comes to the cluster. That is a command on its own machine, so this tells it with what has to be in it.
import { html } from "../lib.js";
import { usePoll } from "../api.js";
import { Command, Dialog, Wrong, open } from "../ui.js";

/** Where a program listens, as host:port. */
const address = (one) => `${one.ip_address.includes(":") ? `[${one.ip_address}]` : one.ip_address}:${one.port}`;

/** A setting as text; nothing where it is not set. Values come as TOML. */
function said(settings, name) {
  const text = settings?.find((one) => one.name === name)?.value?.replace(/^"(.*)"$/, "$1");
  return text === "none" || text === "[]" ? undefined : text;
}

function Join({ close }) {
  const settings = usePoll("leveret/settings", { every: 300 });
  const overview = usePoll("overview?columns=node,listeners", { every: 300 });
  const isKnown = settings.data && overview.data;
  const own = overview.data?.listeners?.filter((one) => one.protocol === "clustering");
  const via = (own?.find((one) => one.node === overview.data.node) ?? own?.[0]);
  const secret = said(settings.data, "cluster_secret_file");
  const isEncrypted = said(settings.data, "cluster_tls_ca") !== undefined;
  const tls = isEncrypted ? " --cluster-tls-ca ca.pem --cluster-tls-certificate node.pem --cluster-tls-key node.key" : "";
  const join = (at) => `leveret cluster join ${at} --cluster-secret-file secret${tls}`;
  return html`<${Dialog} title="Add a node" onClose=${close} wide><div class="prose">
    <${Wrong} failure=${settings.failure ?? overview.failure} />
    ${!isKnown && !settings.failure && html`<p role="status">Asking the node for its address …</p>`}
    ${isKnown && via && html`<p>A node joins by a command on its own machine. It gets copies one after the other, and lets clients in once it knows the topology; nobody else waits for it. The nodes and partitions here show how far it is.</p>
      <ol class="steps"><li>Copy the secret of the cluster there${secret ? html`: the file <code>${secret}</code> of ${overview.data.node}` : ""}. It is the same on every node, and only the broker's user may read it.</li>
        ${isEncrypted && html`<li>Nodes encrypt what they say to each other: make a certificate for its host where the authority's key is, and copy it with <code>ca.pem</code>. <${Command} text="leveret cluster certificates certs HOST" /></li>`}
        <li>Start it with an empty data folder, as the broker's user. <${Command} text=${join(address(via))} /></li></ol>
      <p class="faint">If others do not reach it at its own address and port 25672, it says where they do with <code>--cluster-address HOST:PORT</code>. A service has the same in its settings: <code>cluster_join</code>, <code>cluster_secret_file</code>.</p>`}
    ${isKnown && !via && html`<p>This node runs alone. All that it has stays when it becomes the first of a cluster, for which it has to be started again.</p>
      <ol class="steps"><li>Make a secret that all nodes will share. <${Command} text="(umask 077; head -c 32 /dev/urandom | base64 > secret)" /></li>
        <li>Start this node again with these two settings more, HOST being where others reach it. <${Command} text="leveret server --cluster-address HOST:25672 --cluster-secret-file secret" /></li>
        <li>Copy the secret to the machine of the next node, and start that one there with an empty data folder. <${Command} text=${join("HOST:25672")} /></li></ol>
      <p class="faint">With two nodes both are needed for a majority. Go on to three.</p>`}
    </div><footer class="dialog-end"><button type="button" onClick=${close}>Close</button></footer></${Dialog}>`;
}

export const showJoin = () => open((close) => html`<${Join} close=${close} />`);
