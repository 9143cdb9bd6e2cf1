// The same widget inside another page, with runs that were recorded beforehand. Its keys work while it has the focus.
import { mount } from "./explorer.js";
import { recorded } from "./sources.js";

for (const root of document.querySelectorAll(".gx[data-runs]"))
  mount(root, recorded(new URL(root.dataset.runs, document.baseURI)), root);
