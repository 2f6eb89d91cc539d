// Who are you? Name and password, or a token of an issuer that the broker believes, go to the broker
// once; what is kept is a cookie that no script can read and that ends.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./lib.js";
import { login, loginByToken, ways } from "./api.js";
import { Icon, Logo } from "./icons.js";

export function Login() {
  const [failure, setFailure] = useState();
  const [isBusy, setBusy] = useState(false);
  // What the broker takes; a password until it has said so.
  const [taken, setTaken] = useState({});
  const [wantsToken, setWantsToken] = useState(false);
  const form = useRef();
  const byToken = taken.oauth_enabled && (wantsToken || taken.oauth_disable_basic_auth);
  useEffect(() => {
    ways().then(setTaken, () => {});
  }, []);
  useLayoutEffect(() => form.current.elements[0].focus(), [byToken]);
  const submit = async (event) => {
    event.preventDefault();
    const { name, password, token } = event.target.elements;
    setBusy(true);
    setFailure(undefined);
    try {
      await (byToken ? loginByToken(token.value) : login(name.value, password.value));
    } catch (error) {
      setBusy(false);
      setFailure(words(error, byToken));
      const secret = byToken ? token : password;
      secret.value = "";
      secret.focus();
    }
  };
  return html`<main class="login"><div class="login-card">
    <h1><${Logo} size=${36} />Leveret</h1>
    <form ref=${form} onSubmit=${submit}>
      ${byToken
        ? html`<label class="field"><span>Token</span><textarea key="token" name="token" rows="5" autocomplete="off" autocapitalize="none" spellcheck=${false} required /></label>`
        : html`<label class="field"><span>User</span><input key="name" name="name" autocomplete="username" autocapitalize="none" spellcheck=${false} required /></label>
      <label class="field"><span>Password</span><input name="password" type="password" autocomplete="current-password" required /></label>`}
      ${failure && html`<p class="error" role="alert"><${Icon} name="alert" />${failure}</p>`}
      <button class="primary block" disabled=${isBusy}>${isBusy ? "Checking …" : "Log in"}</button>
      ${taken.oauth_enabled && !taken.oauth_disable_basic_auth && html`<p><button type="button" class="link" onClick=${() => setWantsToken(!wantsToken)}>${byToken ? "Log in with a password" : "Log in with a token"}</button></p>`}
    </form></div>
    <p class="login-note">A user of the broker with the tag <code>management</code>, <code>policymaker</code>, <code>monitoring</code> or <code>administrator</code>.</p></main>`;
}

function words(failure, byToken) {
  if (failure.status !== 401) return failure.message;
  if (/loopback|localhost/i.test(failure.reason)) return "This user may only log in from the broker's own machine. Use another user, or a tunnel.";
  if (/management user/i.test(failure.reason)) return "This user has no tag that opens this page. An administrator can give one, such as “management”.";
  if (byToken) return "The broker does not take this token. It may have expired, or be for another service; the broker's log says why.";
  return "Name or password is wrong. After many wrong ones the broker does not look at passwords for a while.";
}
