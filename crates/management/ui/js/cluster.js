// What every page may need of the cluster as a whole; `app.js` keeps it up to date.
import { store } from "./lib.js";

export const cluster = store({ overview: undefined, nodes: undefined });
