// The page of `gumtrace explore`: the library answers, and the address keeps what is shown.
import { readAddress, writeAddress } from "./address.js";
import { mount } from "./explorer.js";
import { live } from "./sources.js";

const explorer = await mount(document.querySelector(".gx"), live(), document, readAddress(location.hash), writeAddress);
// The event's own address: the page's may meanwhile have been written over, by what was shown before.
addEventListener("hashchange", ({ newURL }) => explorer.open(readAddress(new URL(newURL).hash)));
