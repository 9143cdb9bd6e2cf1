// The page of `gumtrace explore`: the library answers.
import { mount } from "./explorer.js";
import { live } from "./sources.js";

mount(document.querySelector(".gx"), live(), document);
