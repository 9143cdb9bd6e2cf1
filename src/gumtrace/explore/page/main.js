// The page of `gumtrace explore`: the library answers, and the address keeps what is shown.
import { readAddress, writeAddress } from "./address.js";
import { mount } from "./explorer.js";
import { live } from "./sources.js";

const explorer = await mount(document.querySelector(".gx"), live(), document, readAddress(), writeAddress);
addEventListener("hashchange", () => explorer.open(readAddress()));
